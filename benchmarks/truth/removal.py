"""The truth of a scene: which factors, when removed, take its loss away.

*Loss* is the time beyond the objective, summed over all requests of the window; a failed request counts a
fixed penalty. All subsets of a scene's factors are played on the same three seeds, and the loss is shared out
by Shapley's value. What is left with everything neutral is load, or intrinsic if it is slow even with one
request at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import factorial
from statistics import fmean

from phasewise.core.slo import Slo

from .factors import (
    FACTORS,
    FAILING,
    HEALTHY,
    INTRINSIC,
    INTRINSIC_PROMPTS,
    LEVER_GRIDS,
    LEVER_SAYS,
    LOAD,
    RESIDUAL_SAYS,
    START,
    STREAM,
    setting_of,
)
from .play import Exchange, Played, play
from .scene import Scene

SEEDS = 3
CAUSE_SHARE = 0.4
"""A cause has at least this share of the loss; so has a phase that a verdict may name."""
HEALTHY_BELOW, SLOW_ABOVE = 0.05, 0.15
"""The shares of late requests below which a scene is healthy and above which it is slow."""
PENALTY_OBJECTIVES = 10.0
"""A failed request costs as much as a start that is late by so many TTFT objectives."""
STALL_TOKENS = 10
"""A gap as long as this many tokens at the objective's pace is late, however fast the rest of the stream is.
"""
SLOW, UNSCORED = "slow", "unscored"
PHASE_SHARE = 0.25
"""A true cause may be named for a phase if it has at least this share of what the phase lost."""
_PROMPT_FACTORS = frozenset(
    {"prefix_salted", "prefix_cache_off", "long_tenant", "burst", "uneven", "kv_small"}
)
"""Factors that may let prompts slow the streams of others."""

CHUNK_PLAYER = "chunk down"
"""The scene's own chunk size as a player: when it is removed, the chunk size is the best of the grid."""

Subset = frozenset[str]


@dataclass(frozen=True, slots=True)
class Loss:
    """Seconds beyond the objective, by phase; `late` of the `requests` lost any."""

    start_s: float = 0.0
    stream_s: float = 0.0
    failed_s: float = 0.0
    requests: int = 0
    late: int = 0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.start_s + self.stream_s + self.failed_s

    @property
    def late_share(self) -> float:
        """The share of late requests."""
        return self.late / self.requests if self.requests else 0.0

    def of_phase(self, phase: str) -> float:
        """The part in one phase."""
        return {START: self.start_s, STREAM: self.stream_s, FAILING: self.failed_s}[phase]

    def plus(self, other: Loss) -> Loss:
        """Both together."""
        return Loss(
            self.start_s + other.start_s,
            self.stream_s + other.stream_s,
            self.failed_s + other.failed_s,
            self.requests + other.requests,
            self.late + other.late,
        )


def loss_of(played: Played) -> Loss:
    """The loss of a window: of all requests that were under way in it."""
    whole = Loss()
    for exchange in played.exchanges:
        lost = request_loss(exchange, played.setting.slo, played.begins_s, played.ends_s)
        if lost is not None:
            whole = whole.plus(lost)
    return whole


def request_loss(exchange: Exchange, slo: Slo, begins_s: float, ends_s: float) -> Loss | None:
    """One request's loss; None if it was over before the window, or too young to be late or on time."""
    came = exchange.came_s
    done = exchange.finished is not None and len(came) == exchange.planned.output_tokens
    over_s = came[-1] if done else ends_s if exchange.left_s is None else min(exchange.left_s, ends_s)
    if over_s <= begins_s:
        return None
    if exchange.rejected:
        return Loss(failed_s=PENALTY_OBJECTIVES * slo.ttft_s, requests=1, late=1)
    waited_s = (came[0] if came else over_s) - exchange.sent_s
    if not came and waited_s <= slo.ttft_s:
        return None
    start_s = max(0.0, waited_s - slo.ttft_s)
    times_s = came if done or not came else [*came, over_s]
    stream_s = _stream_loss_s(came, times_s, slo.tpot_s)
    return Loss(start_s, stream_s, 0.0, 1, int(start_s > 0 or stream_s > 0))


def _stream_loss_s(came: Sequence[float], times_s: Sequence[float], tpot_s: float) -> float:
    """Over all tokens, or in stalls if that is more; `times_s` ends with the silence of an open stream."""
    if not came:
        return 0.0
    over_all_s = came[-1] - came[0] - tpot_s * (len(came) - 1)
    noticed_s = STALL_TOKENS * tpot_s
    stalls_s = 0.0
    for before, after in pairwise(times_s):
        if after - before >= noticed_s:
            stalls_s += after - before - tpot_s
    # A few tokens have no pace of their own.
    return max(0.0, over_all_s if len(came) >= 4 else 0.0, stalls_s)


def shapley(players: Iterable[str], value: Callable[[Subset], float]) -> dict[str, float]:
    """Each player's mean contribution over all orders in which players may join."""
    everyone = frozenset(players)
    count = len(everyone)
    shares: dict[str, float] = {}
    for player in everyone:
        others = everyone - {player}
        share = 0.0
        for size in range(count):
            weight = factorial(size) * factorial(count - size - 1) / factorial(count)
            for group in combinations(sorted(others), size):
                subset = frozenset(group)
                share += weight * (value(subset | {player}) - value(subset))
        shares[player] = share
    return shares


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of a scene.

    `says` are the causes that a verdict may name first, by phase; a phase without a known cause has an empty
    set. `shares` are all factors' shares of the loss, with what is left of it under LOAD or INTRINSIC.
    `causes` are the true ones, the largest first.
    """

    state: str
    late_share: float
    says: Mapping[str, frozenset[str]] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    runs: int = 0

    @property
    def name(self) -> str:
        """The row of the confusion matrix."""
        return "+".join(self.causes) if self.causes else self.state


def seed_text(scene: Scene, seed: int) -> str:
    """What the traffic of one seed is drawn from; seed 0 is the one that is observed."""
    return f"{scene.id}/{scene.seed}/{seed}"


class Removal:
    """Plays subsets of a scene's factors, each at most once per seed."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.runs = 0
        self.levers: dict[str, int] = {}
        self._losses: dict[tuple[object, ...], Loss] = {}

    def note_full(self, seed: int, loss: Loss) -> None:
        """Take a run that was played elsewhere."""
        self._losses[self._key(frozenset(self.scene.planted), seed, {}, "noise")] = loss

    def loss(
        self, active: Subset, seed: int, levers: Mapping[str, int] | None = None, noise: str = "noise"
    ) -> Loss:
        """The loss with only these factors; levers that no active factor sets are neutral."""
        neutral = dict(self.levers if levers is None else levers)
        for name in active:
            neutral.pop("chunk" if name == CHUNK_PLAYER else FACTORS[name].lever or "", None)
        active -= {CHUNK_PLAYER}
        key = self._key(active, seed, neutral, noise)
        if key not in self._losses:
            self.runs += 1
            setting = setting_of(self.scene, active, neutral)
            self._losses[key] = loss_of(play(setting, seed_text(self.scene, seed), noise))
        return self._losses[key]

    def mean(self, active: Subset, levers: Mapping[str, int] | None = None) -> float:
        """The mean loss over the seeds."""
        return fmean(self.loss(active, seed, levers).total_s for seed in range(SEEDS))

    def phase_mean(self, phase: str) -> Callable[[Subset], float]:
        """The same in one phase."""
        return lambda active: fmean(self.loss(active, seed).of_phase(phase) for seed in range(SEEDS))

    def late(self, active: Subset, levers: Mapping[str, int] | None = None) -> float:
        """The mean share of late requests."""
        return fmean(self.loss(active, seed, levers).late_share for seed in range(SEEDS))

    def alone(self) -> Loss:
        """The loss with one request at a time and everything neutral."""
        self.runs += 1
        setting = setting_of(self.scene, frozenset(), self.levers)
        setting.one_at_a_time = True
        return loss_of(play(setting, seed_text(self.scene, 0)))

    def best(self, lever: str, active: Subset, levers: Mapping[str, int]) -> int:
        """The best value of a lever on the first seed; the scene's own on a tie."""
        own: int = getattr(self.scene.settings, lever)
        tried = {
            value: self.loss(active, 0, {**levers, lever: value}).total_s
            for value in (own, *LEVER_GRIDS[lever])
        }
        return min(tried, key=lambda value: (round(tried[value], 3), value != own))

    def _key(self, active: Subset, seed: int, levers: Mapping[str, int], noise: str) -> tuple[object, ...]:
        unlike = {
            name: value for name, value in levers.items() if value != getattr(self.scene.settings, name)
        }
        return active, seed, tuple(sorted(unlike.items())), noise


def find_truth(scene: Scene, observed: Loss | None = None) -> Truth:
    """What is true of a scene; `observed` is the loss of its first seed, if that was played already."""
    removal = Removal(scene)
    everything = frozenset(scene.planted)
    if observed is not None:
        removal.note_full(0, observed)
    losses = [removal.loss(everything, seed, {}) for seed in range(SEEDS)]
    late_share = fmean(loss.late_share for loss in losses)
    state = _state(late_share, losses[0].late_share)
    if state != SLOW:
        return Truth(state, late_share, runs=removal.runs)
    lost_s = fmean(loss.total_s for loss in losses)
    phases = _phases(losses)
    return _explain(removal, everything, lost_s, phases, late_share)


def _state(late_share: float, observed_share: float) -> str:
    """The observed seed must agree with the mean of all, or the scene stays unscored."""
    if max(late_share, observed_share) < HEALTHY_BELOW:
        return HEALTHY
    return SLOW if min(late_share, observed_share) > SLOW_ABOVE else UNSCORED


def _phases(losses: Sequence[Loss]) -> dict[str, float]:
    whole = Loss()
    for loss in losses:
        whole = whole.plus(loss)
    total_s = whole.total_s or 1.0
    return {
        START: whole.start_s / total_s,
        STREAM: whole.stream_s / total_s,
        FAILING: whole.failed_s / total_s,
    }


def _explain(
    removal: Removal, everything: Subset, lost_s: float, phases: Mapping[str, float], late_share: float
) -> Truth:
    for name in sorted(everything):
        lever = FACTORS[name].lever
        if lever is not None:
            removal.levers[lever] = removal.best(lever, frozenset(), removal.levers)
    players = everything | _silent_chunk(removal, everything, lost_s, phases)
    shares_s = shapley(players, removal.mean)
    noise_s = fmean(
        abs(removal.loss(everything, seed, {}).total_s - removal.loss(everything, seed, {}, "again").total_s)
        for seed in range(SEEDS)
    )
    shares = {name: share_s / lost_s for name, share_s in shares_s.items()}
    says: dict[str, set[str]] = {}
    causes = [
        name
        for name in sorted(shares, key=lambda it: -shares[it])
        if shares[name] >= CAUSE_SHARE and shares_s[name] > noise_s
    ]
    true_phases = [phase for phase, share in phases.items() if share >= CAUSE_SHARE]
    for phase in true_phases:
        in_phase = shapley(players, removal.phase_mean(phase))
        phase_s = removal.phase_mean(phase)(players)
        for name in causes:
            if in_phase[name] >= PHASE_SHARE * phase_s:
                _add(says, _says(name), [phase])
    if "pauses" in causes and _still_paused(removal.scene):
        _add(says, _says("pauses"), [FAILING])
    causes += _residual(removal, lost_s, noise_s, shares, says, true_phases)
    return Truth(
        state=SLOW if causes else UNSCORED,
        late_share=late_share,
        says={phase: frozenset(names) for phase, names in says.items()},
        shares={name: round(share, 3) for name, share in shares.items()},
        causes=tuple(causes),
        phases={phase: round(share, 3) for phase, share in phases.items()},
        noise=round(noise_s / lost_s, 3) if lost_s else 0.0,
        runs=removal.runs,
    )


def _still_paused(scene: Scene) -> bool:
    """Whether the engine stands still when the window closes: then requests that wait have no answer."""
    setting = setting_of(scene, frozenset({"pauses"}))
    return any(begins_s < setting.ends_s < ends_s for begins_s, ends_s in setting.pauses)


def _add(
    says: dict[str, set[str]], by_phase: Mapping[str, frozenset[str]], true_phases: Iterable[str]
) -> None:
    for phase in true_phases:
        if phase in by_phase:
            says.setdefault(phase, set()).update(by_phase[phase])


def _says(name: str) -> Mapping[str, frozenset[str]]:
    if name in FACTORS:
        return FACTORS[name].says
    return {START: LEVER_SAYS[name], STREAM: LEVER_SAYS[name]}


def _silent_chunk(removal: Removal, everything: Subset, lost_s: float, phases: Mapping[str, float]) -> Subset:
    """The chunk size as one more player, where prompts may slow the streams and a smaller one would help."""
    if phases[STREAM] < CAUSE_SHARE or not _PROMPT_FACTORS & everything or "chunk" in removal.levers:
        return frozenset()
    best = removal.best("chunk", everything, {})
    if best >= removal.scene.settings.chunk:
        return frozenset()
    if lost_s - removal.mean(everything, {"chunk": best}) < CAUSE_SHARE * lost_s:
        return frozenset()
    removal.levers["chunk"] = best
    return frozenset({CHUNK_PLAYER})


def _residual(
    removal: Removal,
    lost_s: float,
    noise_s: float,
    shares: dict[str, float],
    says: dict[str, set[str]],
    true_phases: Sequence[str],
) -> list[str]:
    """What is left with every factor neutral: a lever that nobody set, load, or intrinsic."""
    nothing: Subset = frozenset()
    left_s = removal.mean(nothing)
    found: list[str] = []
    if left_s / lost_s < CAUSE_SHARE or left_s <= noise_s:
        shares[LOAD] = left_s / lost_s
        return found
    for lever in ("cap", "chunk"):
        if lever in removal.levers:
            continue
        own, best = getattr(removal.scene.settings, lever), removal.best(lever, nothing, removal.levers)
        spared_s = left_s - removal.mean(nothing, {**removal.levers, lever: best})
        if best != own and spared_s / lost_s >= CAUSE_SHARE and spared_s > noise_s:
            name = f"{lever} {'up' if best > own else 'down'}"
            removal.levers[lever] = best
            left_s -= spared_s
            shares[name] = spared_s / lost_s
            found.append(name)
            _add(says, {START: LEVER_SAYS[name], STREAM: LEVER_SAYS[name]}, true_phases)
    slow = removal.late(nothing) > SLOW_ABOVE
    alone = removal.alone() if slow else Loss()
    kind = LOAD
    if alone.late_share > SLOW_ABOVE:
        kind = INTRINSIC if alone.stream_s >= PHASE_SHARE * alone.total_s else INTRINSIC_PROMPTS
    shares[kind] = left_s / lost_s
    if slow and shares[kind] >= CAUSE_SHARE and left_s > noise_s:
        found.append(kind)
        _add(says, RESIDUAL_SAYS[kind], true_phases)
    return found
