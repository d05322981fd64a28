"""What would be left of the lost time without each thing that may be its cause, by replays of the window.

Every suspect has a neutral form (suspects.py). The window is replayed with every subset of the suspects that
matter, and what is lost is shared out by Shapley's value, separately for both phases. What is left with all
of them neutral is the load itself, or what a request needs alone. The same replay tries changed settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, count
from math import ceil, factorial
from statistics import median

from phasewise.core.latency import chunk_gaps_s
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Timeline
from phasewise.costs.fit.step import StepSeconds, StepWork, decoding, prefilling
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.analysis.window_summary import Removals, Rest, replay_agrees
from phasewise.diagnosis.finding import Cause, Phase
from phasewise.diagnosis.predict.costs import Costs
from phasewise.diagnosis.predict.replay import (
    lost_by_phase,
    lost_in_replay,
    replay_requests,
)
from phasewise.diagnosis.predict.setup import Setup, Unpredictable, changed, drafting_of
from phasewise.diagnosis.predict.suspects import (
    IN_STRETCHES,
    LEAST_OF_LIMIT,
    LIMITS,
    PER_PROMPT,
    SLOWER,
    STARVED,
    TYPICAL_CHUNK,
    Hints,
    Suspect,
    chunks_of,
    moved,
    running_at_most,
    suspects_of,
    with_requests,
)
from phasewise.diagnosis.predict.traffic import Traffic, recorded_traffic

FEWEST_REQUESTS = 6
MOST_TOKENS = 12_000
"""Of longer windows the latest requests are replayed, with about so many output tokens."""
MATTERS = 0.1
"""A suspect whose absence spares less of the loss is none."""
MOST_SUSPECTS = 4
BEST_LEVER = 0.4
"""A setting that nothing points at is a cause if another value spares so much of the loss."""
CHUNKS, RUNNING = (256, 1024, 4096), (8, 24, 64, 256)
LATE_ALONE = 0.15
"""If more requests than this share are late even alone, the load is not the cause of what is left,"""
OF_BOTH = 0.25
"""and it is in the steps of streams, not only in prompts, if streams lose this share of it."""
FAR_APART_S = 1e4

Suspects = frozenset[str]


def window_replay(
    timelines: Sequence[Timeline],
    setup: Setup,
    costs: Costs,
    slo: Slo,
    hints: Hints,
    measured_s: Mapping[Phase, float] | None = None,
) -> WindowReplay | None:
    """The window, to be replayed with changes; None if it cannot be. `measured_s` is what was lost, if the
    timelines do not show it.
    """
    latest = _latest(timelines)
    traffic = recorded_traffic(latest)
    if setup.unknown or len(traffic.requests) < FEWEST_REQUESTS:
        return None
    longest = max(setup.shape.max_model_len, traffic.longest_tokens + 1)
    # The lengths of requests under way are guesses, and a guess may exceed the KV cache.
    blocks = max(setup.shape.total_blocks, ceil(longest / setup.shape.block_size))
    return WindowReplay(
        traffic,
        replace(setup, shape=replace(setup.shape, max_model_len=longest, total_blocks=blocks)),
        costs,
        slo,
        suspects_of(setup, traffic, hints),
        hints,
        hints.ended_unix_s - latest[0].started_unix_s,
        measured_s or _measured(latest, slo),
    )


def _latest(timelines: Sequence[Timeline]) -> list[Timeline]:
    """The requests that can be replayed; of many the latest."""
    usable = [it for it in timelines if it.prompt_tokens and it.output_tokens and it.content_times_s]
    usable += _with_usual_lengths([it for it in timelines if it.outcome is Outcome.UNFINISHED], usable)
    usable.sort(key=lambda it: it.started_unix_s)
    tokens, first = 0, len(usable)
    while first > 0 and tokens < MOST_TOKENS:
        first -= 1
        tokens += usable[first].output_tokens or 0
    return usable[first:]


def _with_usual_lengths(unfinished: Sequence[Timeline], ended: Sequence[Timeline]) -> Iterator[Timeline]:
    """Requests that are open when the window closes, as long as those that ended in it usually were."""
    if not ended:
        return
    prompt, output = (
        round(median(lengths))
        for lengths in ([it.prompt_tokens or 1 for it in ended], [it.output_tokens or 1 for it in ended])
    )
    cached = sum(it.cached_tokens or 0 for it in ended) / sum(it.prompt_tokens or 1 for it in ended)
    sized = [it.prompt_tokens / it.prompt_bytes for it in ended if it.prompt_tokens and it.prompt_bytes]
    for it in unfinished:
        tokens = round(it.prompt_bytes * median(sized)) if sized and it.prompt_bytes else prompt
        yield replace(
            it,
            prompt_tokens=max(1, it.prompt_tokens or tokens),
            cached_tokens=round(cached * tokens) if it.cached_tokens is None else it.cached_tokens,
            output_tokens=max(output, len(it.content_times_s) + 1),
        )


def _measured(timelines: Sequence[Timeline], slo: Slo) -> dict[Phase, float]:
    seen = (
        (it.content_times_s[0], chunk_gaps_s(it), _so_far(it)) if it.content_times_s else (it.ended_s, (), 1)
        for it in timelines
    )
    return dict(zip(PHASES, lost_by_phase(seen, slo), strict=True))


def _so_far(timeline: Timeline) -> int:
    """The tokens that have come."""
    if timeline.outcome is Outcome.UNFINISHED:
        return len(timeline.content_times_s)
    return timeline.output_tokens or 1


TOO_FEW_TO_EXTRAPOLATE = 2
PHASES = (Phase.START, Phase.STREAM)
NOBODY: Suspects = frozenset()


@dataclass(slots=True)
class WindowReplay:
    """A window that is replayed again and again, each time without some suspects or with another setting.

    It ends at `until_s`; in each phase `measured_s` was lost.
    """

    traffic: Traffic
    setup: Setup
    costs: Costs
    slo: Slo
    suspects: dict[str, Suspect]
    hints: Hints
    until_s: float
    measured_s: Mapping[Phase, float]
    _lost: dict[Suspects, tuple[float, float]] = field(default_factory=dict)

    def gain(self, change: LeverChange) -> float | None:
        """The share of the lost time that a change takes away; None if the replay cannot say."""
        lost_s, after = sum(self.lost(NOBODY)), changed(self.setup, change)
        if isinstance(after, Unpredictable) or not replay_agrees(sum(self.measured_s.values()), lost_s):
            return None
        before, chunk = self.setup.shape, after.shape.max_num_batched_tokens
        if after.shape.max_num_seqs > before.max_num_seqs and not self._knows_batches():
            return None
        if chunk > before.max_num_batched_tokens and not self._knows(min(chunk, self.traffic.longest_tokens)):
            return None
        _, traffic, cost = self._without(NOBODY)
        return 1.0 - sum(self._lost_with(after, traffic, cost)) / lost_s

    def removals(self) -> Removals:
        """What each suspect costs."""
        untested: frozenset[Cause] = frozenset()
        if not self._knows(TYPICAL_CHUNK):
            untested = frozenset({Cause.CHUNKS_SMALL})
            self.suspects.pop(f"chunk {TYPICAL_CHUNK}", None)
        if not self._knows_batches():
            untested |= {Cause.BATCH_CAP_LOW}
            self.suspects.pop("cap", None)
        chosen = self._chosen()
        best = self._best_chunk(NOBODY)
        if best is not None and self._cuts(best) and self._spared({best}) >= BEST_LEVER:
            chosen = [*(it for it in chosen if not it.startswith("chunk")), best]
        chosen = chosen[-MOST_SUSPECTS:]
        lost_s = dict(zip(PHASES, self.lost(NOBODY), strict=True))
        shares = {
            phase: self._shares(phase, index, chosen) for index, phase in enumerate(PHASES) if lost_s[phase]
        }
        return Removals(
            self.measured_s,
            lost_s,
            shares,
            untested,
            self.hints.unnamed.slower,
            self.hints.unnamed.per_prompt_s,
            self.hints.unnamed.in_stretches,
            self._rest(frozenset(chosen)),
        )

    def _rest(self, gone: Suspects) -> Rest:
        """Whether what is left without these would be lost with one request at a time too."""
        setup, traffic, cost = self._without(gone)
        alone = with_requests(
            traffic, (moved(it, FAR_APART_S * index) for index, it in enumerate(traffic.requests))
        )
        seen = replay_requests(alone, setup, cost, drafting=drafting_of(setup.drafts))
        each = [lost_in_replay([it], alone, self.slo) for it in seen]
        if sum(any(lost) for lost in each) <= LATE_ALONE * len(each):
            return Rest.LOAD
        start_s, stream_s = (sum(lost[index] for lost in each) for index in range(len(PHASES)))
        if stream_s < OF_BOTH * (start_s + stream_s):
            return Rest.PROMPTS
        # Where no stream was ever alone, the step of a lone one is a guess of the fit.
        context = traffic.requests[0].prompt_tokens
        return Rest.STEPS if self.costs.of(decoding([context])).seen else Rest.LOAD

    def _shares(self, phase: Phase, index: int, chosen: Sequence[str]) -> dict[Cause | None, float]:
        """The share of what the phase loses that goes with each cause."""
        whole_s, everyone = self.lost(NOBODY)[index], frozenset(chosen)
        total = _shapley(chosen, self._spared)
        found = _shapley(chosen, lambda gone: whole_s - self.lost(gone)[index])
        for name in self._levers_left(everyone):
            found[name] = self.lost(everyone)[index] - self.lost(everyone | {name})[index]
            total[name] = 1.0
        shares: dict[Cause | None, float] = {}
        for name, seconds in found.items():
            if total[name] >= (LEAST_OF_LIMIT if name in LIMITS else MATTERS):
                cause = self.suspects[name].named(phase)
                shares[cause] = shares.get(cause, 0.0) + seconds / whole_s
        return shares

    def _chosen(self) -> list[str]:
        """The suspects that matter, the most costly last."""
        spared = {name: self._spared({name}) for name in self.suspects}
        return sorted((name for name in spared if spared[name] >= MATTERS), key=lambda it: spared[it])

    def _best_chunk(self, gone: Suspects) -> str | None:
        """Another chunk size that loses least, if that is less than now."""
        own = self.setup.shape.max_num_batched_tokens
        names = []
        for tokens in (it for it in CHUNKS if it != own):
            if tokens > own and not self._knows(tokens):
                continue
            start = Cause.LONG_PROMPTS if tokens < own else Cause.CHUNKS_SMALL
            stream = Cause.CHUNKS_STALL if tokens < own else Cause.CHUNKS_SMALL
            names.append(f"chunk {tokens}")
            self.suspects.setdefault(names[-1], Suspect(chunks_of(tokens), start, stream))
        best = min(names, key=lambda it: sum(self.lost(gone | {it})), default=None)
        return best if best and sum(self.lost(gone | {best})) < sum(self.lost(gone)) else None

    def _knows(self, tokens: int) -> bool:
        """Whether steps with so many prompt tokens were seen."""
        return self.costs.of(prefilling(tokens)).seen

    def _knows_batches(self) -> bool:
        """Whether steps had enough streams to say what more of them would cost."""
        return self.setup.shape.max_num_seqs > TOO_FEW_TO_EXTRAPOLATE

    def _cuts(self, name: str) -> bool:
        return self.suspects[name].stream is Cause.CHUNKS_STALL

    def _levers_left(self, gone: Suspects) -> list[str]:
        """Settings that nothing points at, and that would spare much of what is left."""
        whole_s, left_s = sum(self.lost(NOBODY)), sum(self.lost(gone))
        if whole_s <= 0 or left_s < BEST_LEVER * whole_s:
            return []
        found = []
        if not any(it.startswith("chunk") for it in gone):
            found.append(self._best_chunk(gone))
        if "cap" not in gone:
            found.append(self._best_cap(gone))
        spared = {it: (left_s - sum(self.lost(gone | {it}))) / whole_s for it in found if it is not None}
        best = max(spared, key=lambda it: spared[it], default=None)
        return [best] if best is not None and spared[best] >= BEST_LEVER else []

    def _best_cap(self, gone: Suspects) -> str | None:
        own = self.setup.shape.max_num_seqs
        names = []
        for running in (it for it in RUNNING if it != own):
            cause = Cause.BATCH_CAP_HIGH if running < own else Cause.BATCH_CAP_LOW
            names.append(f"cap {running}")
            self.suspects.setdefault(names[-1], Suspect(running_at_most(running), cause, cause))
        return min(names, key=lambda it: sum(self.lost(gone | {it})))

    def _spared(self, gone: Iterable[str]) -> float:
        """The share of what is lost in both phases that goes with these."""
        whole_s = sum(self.lost(NOBODY))
        return (whole_s - sum(self.lost(frozenset(gone)))) / whole_s if whole_s > 0 else 0.0

    def lost(self, gone: Suspects) -> tuple[float, float]:
        """The seconds lost in both phases without these."""
        if gone not in self._lost:
            self._lost[gone] = self._lost_with(*self._without(gone))
        return self._lost[gone]

    def _lost_with(self, setup: Setup, traffic: Traffic, cost: StepSeconds) -> tuple[float, float]:
        seen = replay_requests(traffic, setup, cost, drafting=drafting_of(setup.drafts))
        return lost_in_replay(seen, traffic, self.slo, self.until_s)

    def _without(self, gone: Suspects) -> tuple[Setup, Traffic, StepSeconds]:
        setup, traffic = self.setup, self.traffic
        for name in sorted(gone):
            setup, traffic = self.suspects[name].neutral(setup, traffic)
        steps = sum(it.output_tokens for it in traffic.requests) / max(1.0, self.batch)
        unnamed = self.hints.unnamed
        cost = _slowing(self.costs, unnamed.slower, steps, slows=SLOWER not in gone)
        if PER_PROMPT in gone:
            cost = _without_fixed(cost, unnamed.per_prompt_s)
        if IN_STRETCHES in gone:
            cost = _sped_up(cost, 1.0 - unnamed.in_stretches)
        if STARVED in gone:
            cost = _sped_up(cost, 1.0 - self.hints.starved)
        return setup, traffic, cost

    @property
    def batch(self) -> float:
        """About how many streams share a step."""
        requests = self.traffic.requests
        span_s = max(it.went_s for it in requests) - min(it.came_s for it in requests)
        return sum(it.went_s - it.came_s for it in requests) / span_s if span_s > 0 else 1.0


def _slowing(costs: Costs, slower: float, steps: float, *, slows: bool) -> StepSeconds:
    """The cost of steps, in the middle as fitted: each a little slower than the one before it, or all as fast
    as the first.
    """
    first = 2.0 / (1.0 + slower)
    done = count()

    def cost(work: StepWork) -> float:
        further = min(1.0, next(done) / max(steps, 1.0)) if slows else 0.0
        return costs.of(work).cost(work) * first * (1.0 + (slower - 1.0) * further)

    return cost


def _without_fixed(cost: StepSeconds, per_prompt_s: float) -> StepSeconds:
    """The cost of steps in which prompts take only what their tokens take."""

    def cheaper(work: StepWork) -> float:
        prompts = max(0, work.requests - work.decode_tokens)
        if not work.prompt_tokens or not prompts:
            return cost(work)
        return max(cost(work) - per_prompt_s * prompts, cost(work.without_prompts()))

    return cheaper


def _sped_up(cost: StepSeconds, left: float) -> StepSeconds:
    """The cost of steps of which only this share is left."""
    return lambda work: left * cost(work)


def _shapley(players: Sequence[str], spared: Callable[[Suspects], float]) -> dict[str, float]:
    """Each one's mean contribution over all orders in which they may be removed."""
    count = len(players)
    shares: dict[str, float] = {}
    for player in players:
        others = [it for it in players if it != player]
        shares[player] = sum(
            factorial(size)
            * factorial(count - size - 1)
            / factorial(count)
            * (spared(frozenset({*group, player})) - spared(frozenset(group)))
            for size in range(count)
            for group in combinations(others, size)
        )
    return shares
