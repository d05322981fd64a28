"""What would be left of the lost time without each thing that may be its cause, by replays of the window.

Every suspect has a neutral form: a setting without its limit, arrivals at independent times, prompts without
their repeated text. The window is replayed with every subset of the suspects that matter, and what is lost is
shared out by Shapley's value, separately for both phases. What is left with all of them neutral is the load
itself, or what a request needs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, count
from math import ceil, factorial, inf
from statistics import median

import numpy as np

from phasewise.core.latency import chunk_gaps_s
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Timeline
from phasewise.costs.fit.step import StepSeconds, StepWork, prefilling
from phasewise.diagnosis.analysis.window_summary import Removals, Rest
from phasewise.diagnosis.finding import Cause, Phase
from phasewise.diagnosis.predict.costs import Costs
from phasewise.diagnosis.predict.replay import (
    least_outstanding,
    lost_by_phase,
    lost_in_replay,
    replay_requests,
)
from phasewise.diagnosis.predict.setup import Setup, drafting_of
from phasewise.diagnosis.predict.traffic import RecordedRequest, Traffic, recorded_traffic
from phasewise.diagnosis.predict.unnamed import Unnamed

FEWEST_REQUESTS = 6
MOST_TOKENS = 12_000
"""Of longer windows the latest requests are replayed, with about so many output tokens."""
MATTERS = 0.1
"""A suspect whose absence spares less of the loss is none."""
MOST_SUSPECTS = 4
BEST_LEVER = 0.4
"""A setting that nothing points at is a cause if another value spares so much of the loss."""
MANY = 8
"""A limit is removed by a value this many times as large."""
SMALL_CHUNK, TYPICAL_CHUNK, CHUNKS = 256, 1024, (256, 1024, 4096)
FEW_RUNNING, RUNNING = 64, (8, 24, 64, 256)
FEW_HELD = 24
"""A KV cache that holds fewer typical requests than this is small."""
LATE_ALONE = 0.15
"""If more requests than this share are late even alone, the load is not the cause of what is left,"""
OF_BOTH = 0.25
"""and it is in the steps of streams, not only in prompts, if streams lose this share of it."""
FAR_APART_S = 1e4
LONG_AGAIN = 3.0
"""A prompt that is this many times as long as the median is one of a few long ones."""

Change = Callable[[Setup, Traffic], tuple[Setup, Traffic]]
Suspects = frozenset[str]


@dataclass(frozen=True, slots=True)
class Hints:
    """What else is known of the window.

    `repeated` is why text is computed again, and its share of the computed prompt tokens. `bursty` says that
    requests come together. `unnamed` is what steps have that no rule has a name for. `engines` could have
    served them, even if some had none. Steps waited for a core in a share `starved` of their time.
    """

    repeated: tuple[Cause, float] | None = None
    bursty: bool = False
    unnamed: Unnamed = Unnamed()  # noqa: RUF009 - frozen
    window_s: float = 0.0
    ended_unix_s: float = inf
    engines: int = 1
    starved: float = 0.0


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Something that may be removed, and its name in each phase; None if no rule has one."""

    neutral: Change
    start: Cause | None
    stream: Cause | None

    def named(self, phase: Phase) -> Cause | None:
        return self.start if phase is Phase.START else self.stream


def removals(
    timelines: Sequence[Timeline],
    setup: Setup,
    costs: Costs,
    slo: Slo,
    hints: Hints,
    measured_s: Mapping[Phase, float] | None = None,
) -> Removals | None:
    """What each suspect costs; None if the window cannot be replayed. `measured_s` is what was lost, if the
    timelines do not show it.
    """
    latest = _latest(timelines)
    traffic = recorded_traffic(latest)
    if setup.unknown or len(traffic.requests) < FEWEST_REQUESTS:
        return None
    longest = max(setup.shape.max_model_len, traffic.longest_tokens + 1)
    # The lengths of requests under way are guesses, and a guess may exceed the KV cache.
    blocks = max(setup.shape.total_blocks, ceil(longest / setup.shape.block_size))
    window = _Replays(
        traffic,
        replace(setup, shape=replace(setup.shape, max_model_len=longest, total_blocks=blocks)),
        costs,
        slo,
        _suspects(setup, traffic, hints),
        hints,
        hints.ended_unix_s - latest[0].started_unix_s,
    )
    return window.removals(measured_s or _measured(latest, slo))


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


PHASES = (Phase.START, Phase.STREAM)
NOBODY: Suspects = frozenset()


@dataclass(slots=True)
class _Replays:
    traffic: Traffic
    setup: Setup
    costs: Costs
    slo: Slo
    suspects: dict[str, _Suspect]
    hints: Hints
    until_s: float
    _lost: dict[Suspects, tuple[float, float]] = field(default_factory=dict)

    def removals(self, measured_s: Mapping[Phase, float]) -> Removals:
        untested: frozenset[Cause] = frozenset()
        if not self._knows(TYPICAL_CHUNK):
            untested = frozenset({Cause.CHUNKS_SMALL})
            self.suspects.pop(f"chunk {TYPICAL_CHUNK}", None)
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
            measured_s,
            lost_s,
            shares,
            untested,
            self.hints.unnamed.slower,
            self.hints.unnamed.per_prompt_s,
            self._rest(frozenset(chosen)),
        )

    def _rest(self, gone: Suspects) -> Rest:
        """Whether what is left without these would be lost with one request at a time too."""
        setup, traffic, cost = self._without(gone)
        alone = _with_requests(
            traffic, (_moved(it, FAR_APART_S * index) for index, it in enumerate(traffic.requests))
        )
        seen = replay_requests(alone, setup, cost, drafting=drafting_of(setup.drafts))
        each = [lost_in_replay([it], alone, self.slo) for it in seen]
        if sum(any(lost) for lost in each) <= LATE_ALONE * len(each):
            return Rest.LOAD
        start_s, stream_s = (sum(lost[index] for lost in each) for index in range(len(PHASES)))
        return Rest.STEPS if stream_s >= OF_BOTH * (start_s + stream_s) else Rest.PROMPTS

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
            self.suspects.setdefault(names[-1], _Suspect(_chunk(tokens), start, stream))
        best = min(names, key=lambda it: sum(self.lost(gone | {it})), default=None)
        return best if best and sum(self.lost(gone | {best})) < sum(self.lost(gone)) else None

    def _knows(self, tokens: int) -> bool:
        """Whether steps with so many prompt tokens were seen."""
        return self.costs.of(prefilling(tokens)).seen

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
            self.suspects.setdefault(names[-1], _Suspect(_running(running), cause, cause))
        return min(names, key=lambda it: sum(self.lost(gone | {it})))

    def _spared(self, gone: Iterable[str]) -> float:
        """The share of what is lost in both phases that goes with these."""
        whole_s = sum(self.lost(NOBODY))
        return (whole_s - sum(self.lost(frozenset(gone)))) / whole_s if whole_s > 0 else 0.0

    def lost(self, gone: Suspects) -> tuple[float, float]:
        """The seconds lost in both phases without these."""
        if gone not in self._lost:
            setup, traffic, cost = self._without(gone)
            seen = replay_requests(traffic, setup, cost, drafting=drafting_of(setup.drafts))
            self._lost[gone] = lost_in_replay(seen, traffic, self.slo, self.until_s)
        return self._lost[gone]

    def _without(self, gone: Suspects) -> tuple[Setup, Traffic, StepSeconds]:
        setup, traffic = self.setup, self.traffic
        for name in sorted(gone):
            setup, traffic = self.suspects[name].neutral(setup, traffic)
        steps = sum(it.output_tokens for it in traffic.requests) / max(1.0, self.batch)
        unnamed = self.hints.unnamed
        cost = _slowing(self.costs, unnamed.slower, steps, slows=SLOWER not in gone)
        if PER_PROMPT in gone:
            cost = _without_fixed(cost, unnamed.per_prompt_s)
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


# --- The suspects.


def _suspects(setup: Setup, traffic: Traffic, hints: Hints) -> dict[str, _Suspect]:
    """What may be the cause besides the load."""
    shape = setup.shape
    found = {"long": _Suspect(_without_long, Cause.LONG_PROMPTS, Cause.CHUNKS_STALL)}
    if shape.max_num_seqs < FEW_RUNNING:
        found["cap"] = _Suspect(_uncapped, Cause.BATCH_CAP_LOW, Cause.BATCH_CAP_LOW)
    each = median(it.prompt_tokens + it.output_tokens for it in traffic.requests)
    if shape.total_blocks * shape.block_size < FEW_HELD * each:
        found["kv"] = _Suspect(_roomy, Cause.KV_EXHAUSTED, Cause.KV_EXHAUSTED)
    if shape.max_num_batched_tokens < SMALL_CHUNK:
        larger = _chunk(TYPICAL_CHUNK)
        found[f"chunk {TYPICAL_CHUNK}"] = _Suspect(larger, Cause.CHUNKS_SMALL, Cause.CHUNKS_SMALL)
    if hints.bursty:
        found["bursts"] = _Suspect(_by_chance(hints.window_s), Cause.BURSTS, Cause.BURSTS)
    if hints.engines > 1:
        found["uneven"] = _Suspect(_balanced(hints.engines), Cause.UNEVEN_LOAD, Cause.UNEVEN_LOAD)
    if hints.repeated is not None:
        cause, share = hints.repeated
        found["repeated"] = _Suspect(_once(share), cause, cause)
    if hints.unnamed.slower > 1.0:
        found[SLOWER] = _Suspect(_as_it_is, None, None)
    if hints.unnamed.per_prompt_s > 0.0:
        found[PER_PROMPT] = _Suspect(_as_it_is, None, None)
    if hints.starved > 0.0:
        found[STARVED] = _Suspect(_as_it_is, Cause.ENGINE_STARVED, Cause.ENGINE_STARVED)
    return found


SLOWER, PER_PROMPT, STARVED = "slower", "per prompt", "starved"
LIMITS = frozenset({"cap", "kv"})
LEAST_OF_LIMIT = 0.3
"""Without a limit, requests wait less and slow each other down more: both phases count."""


def _as_it_is(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
    return setup, traffic


def _running(running: int) -> Change:
    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        within = min(running, setup.shape.max_num_batched_tokens)
        return replace(setup, shape=replace(setup.shape, max_num_seqs=within), most_running=running), traffic

    return change


def _uncapped(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
    running = max(256, MANY * setup.shape.max_num_seqs)
    within = min(running, setup.shape.max_num_batched_tokens)
    return replace(setup, shape=replace(setup.shape, max_num_seqs=within), most_running=running), traffic


def _roomy(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
    return replace(setup, shape=replace(setup.shape, total_blocks=MANY * setup.shape.total_blocks)), traffic


def _chunk(tokens: int) -> Change:
    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        running = min(setup.most_running or setup.shape.max_num_seqs, tokens)
        shape = replace(setup.shape, max_num_batched_tokens=tokens, max_num_seqs=running)
        return replace(setup, shape=shape), traffic

    return change


def _by_chance(window_s: float) -> Change:
    """The same requests at independent times within the window."""

    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        requests = traffic.requests
        span_s = max(window_s, requests[-1].came_s - requests[0].came_s)
        # A fixed seed: the same window gives the same verdict.
        drawn = np.random.default_rng(0).uniform(0.0, span_s, len(requests))
        times = sorted(requests[0].came_s + float(at_s) for at_s in drawn)
        return setup, _with_requests(traffic, map(_moved, requests, times))

    return change


def _without_long(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
    usual = round(median(it.prompt_tokens for it in traffic.requests))
    return setup, _with_requests(
        traffic,
        (_shortened(it, usual) if it.prompt_tokens > LONG_AGAIN * usual else it for it in traffic.requests),
    )


def _once(share: float) -> Change:
    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        return setup, _with_requests(
            traffic,
            (
                _shortened(it, it.prompt_tokens - round(share * max(0, it.prompt_tokens - it.cached_tokens)))
                for it in traffic.requests
            ),
        )

    return change


def _balanced(engines: int) -> Change:
    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        even = least_outstanding(traffic, engines)
        return replace(setup, engines=len(even.engines)), even

    return change


def _with_requests(traffic: Traffic, requests: Iterable[RecordedRequest]) -> Traffic:
    return replace(traffic, requests=tuple(requests))


def _moved(request: RecordedRequest, came_s: float) -> RecordedRequest:
    return replace(request, came_s=came_s, went_s=came_s + request.went_s - request.came_s)


def _shortened(request: RecordedRequest, tokens: int) -> RecordedRequest:
    """The beginning of the same prompt."""
    tokens = max(1, tokens)
    part = tokens / request.prompt_tokens
    kept = max(0, int(len(request.marks) * part))
    return replace(
        request,
        prompt_tokens=tokens,
        cached_tokens=min(request.cached_tokens, tokens),
        prompt_bytes=round(request.prompt_bytes * part),
        marks=request.marks[:kept],
    )
