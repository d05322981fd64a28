"""Decides whether a request is disaggregated, and on which workers its prefill and decode run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from phasewise.core.decision import KEPT_CANDIDATES, KEPT_OPTIONS, Candidate, Decision, Option, Terms
from phasewise.core.kv_transfer import SplitRule
from phasewise.core.request import GenerationRequest
from phasewise.core.units import duration
from phasewise.core.worker import Role
from phasewise.scheduling.engine_speed import EnginePace, EngineSpeeds, PrefillSpeed
from phasewise.scheduling.policies import CanTransfer, WholePolicy
from phasewise.scheduling.prefix_index import PrefixIndex

# --- The cost in seconds of each phase on each worker, and of each way to serve the request.
#
# Pure arithmetic over one request and the candidates' loads. Every placement prices every worker, so records
# are built only of the few ways that are kept.

MOST_READING = 0.8
"""The upper bound of a prefill share: some decoding always happens."""


class Size(NamedTuple):
    """The expected lengths of a request's prompt and answer."""

    prompt_tokens: int
    output_tokens: int


class Priced(NamedTuple):
    """The cost of both phases on one worker.

    `wait_s` and `prefill_s` are the request's own time until its prompt is computed there; `stalled_s` is
    what that takes from the worker's streams and from prompts that arrive during it. `read_cost_s` is the sum
    of the three. Likewise `write_cost_s` is `decode_s` plus `taken_s`, which decoding here takes from others.
    """

    candidate: Candidate
    pace: EnginePace
    cached_tokens: int
    wait_s: float
    prefill_s: float
    stalled_s: float
    read_cost_s: float
    decode_s: float
    taken_s: float
    write_cost_s: float


class Way(NamedTuple):
    """One way to serve a request: all of it on `worker`, or its prefill on `prefill`."""

    cost_s: float
    worker: Priced
    prefill: Priced | None = None


def price(
    load: Candidate, pace: EnginePace, cached_tokens: int, lately: PrefillSpeed, read_ahead: float, size: Size
) -> Priced:
    """The cost of each phase on this worker. A prefill stalls every stream of the worker while it lasts.

    The worker is expected to spend the share `read_ahead` of its time on prefill from now on.
    """
    streams, reads = load.streams, load.worker.role is Role.PREFILL
    wait_s = unread_s(load, pace) if load.unread_tokens else 0.0
    prefill_s = pace.read_s(size.prompt_tokens, cached_tokens)
    stalled_s = streams * prefill_s
    if not reads:
        # Prompts that arrive during it wait for half of it on average, and others behind them as long again.
        # Prompts that arrive at a prefill worker are long and may go elsewhere by their own price.
        stalled_s += lately.prompts_per_s * prefill_s * prefill_s
    # Answers that are about to begin share its steps too.
    beside = streams if reads else load.outstanding_requests
    steps = size.output_tokens - 1
    undisturbed_s = steps * (pace.step_s + pace.step_s_per_stream * (beside + 1))
    decode_s = undisturbed_s * _stretch(lately.share)
    # A stream hinders later prompts: each stalls it or has to go elsewhere. This counts as much as the
    # stream's own stall; benchmarks/split_decision.py measures that this is right.
    in_the_way_s = undisturbed_s * _stretch(2.0 * read_ahead) - decode_s
    taken_s = steps * pace.step_s_per_stream * beside + (in_the_way_s if in_the_way_s > 0.0 else 0.0)
    return Priced(
        load,
        pace,
        cached_tokens,
        wait_s,
        prefill_s,
        stalled_s,
        wait_s + prefill_s + stalled_s,
        decode_s,
        taken_s,
        decode_s + taken_s,
    )


def _stretch(read_share: float) -> float:
    """By which factor an answer slows down if it is stalled for this share of the time."""
    return 1.0 / (1.0 - (read_share if read_share < MOST_READING else MOST_READING))


def unread_s(load: Candidate, pace: EnginePace) -> float:
    """How long a worker needs for its pending prompts, one of which is half done on average."""
    prompts = max(1, load.unread_requests)
    return (prompts - 0.5) * pace.read_s(load.unread_tokens / prompts)


def kv_transfer_s(reader: Priced, writer: Priced, size: Size) -> float:
    """Seconds from the end of prefill on one worker to the first token on another, which fetches the KV.

    A prefill still running on the decode worker by then delays the step of the first token.
    """
    still_s = writer.wait_s - reader.wait_s - reader.prefill_s
    lacking_tokens = size.prompt_tokens - writer.cached_tokens
    taken_s = writer.pace.fetch_s(lacking_tokens) + writer.pace.token_s(writer.candidate.streams + 1)
    return taken_s + still_s if still_s > 0.0 else taken_s


def taken_from_others_s(way: Way) -> float:
    """The part of a way's cost that other requests bear."""
    return (way.prefill or way.worker).stalled_s + way.worker.taken_s


def option_of(way: Way, size: Size) -> Option:
    """The record of a way."""
    reader = way.prefill or way.worker
    transfer_s = 0.0 if way.prefill is None else kv_transfer_s(way.prefill, way.worker, size)
    return Option(
        way.worker.candidate.worker.ref,
        None if way.prefill is None else way.prefill.candidate.worker.ref,
        Terms(reader.wait_s, reader.prefill_s, transfer_s, way.worker.decode_s, taken_from_others_s(way)),
        size.prompt_tokens,
        reader.cached_tokens,
    )


LEAST_READING_AHEAD = 0.2
"""The least share of a prefill worker's time that is expected to be prefill, before any traffic shows it."""
_COST, _READ_COST = attrgetter("cost_s"), attrgetter("read_cost_s")


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """Places requests of a fleet with prefill workers; `whole` places requests without measured figures.

    A KV transfer that was never timed costs nothing until it is.
    """

    rule: SplitRule
    threshold_tokens: int
    whole: WholePolicy
    paces: EngineSpeeds
    prefixes: PrefixIndex

    def __call__(
        self, request: GenerationRequest, candidates: Sequence[Candidate], can_transfer: CanTransfer
    ) -> Decision:
        """Disaggregate if the rule says so and a pair can transfer KV; else place the whole request."""
        if self.rule is SplitRule.AUTO:
            return self._cheapest(request, candidates, can_transfer)
        if self.rule is SplitRule.NEVER:
            return self.whole(request, candidates)
        return self._by_rule(request, candidates, can_transfer)

    # --- always, threshold --------------------------------------------------------------------------------

    def _by_rule(
        self, request: GenerationRequest, candidates: Sequence[Candidate], can_transfer: CanTransfer
    ) -> Decision:
        decision = self.whole(request, _takers_of_whole(candidates))
        if not self._wants_split(request) or decision.chosen.role is not Role.DECODE:
            return decision
        readers = [
            candidate
            for candidate in candidates
            if candidate.worker.role is Role.PREFILL and can_transfer(candidate.worker, decision.chosen)
        ]
        if not readers:
            return decision
        prefill = min(readers, key=lambda candidate: candidate.unread_tokens).worker
        return replace(decision, policy=self.rule, prefill=prefill)

    def _wants_split(self, request: GenerationRequest) -> bool:
        if not request.splittable:
            return False
        return (
            self.rule is SplitRule.ALWAYS or self.paces.sizes.prompt_tokens(request) >= self.threshold_tokens
        )

    # --- auto ---------------------------------------------------------------------------------------------

    def _cheapest(
        self, request: GenerationRequest, candidates: Sequence[Candidate], can_transfer: CanTransfer
    ) -> Decision:
        sizes = self.paces.sizes
        size = Size(sizes.prompt_tokens(request), sizes.output_tokens(request))
        priced = self._priced(request, candidates, size)
        if not priced:
            decision = self.whole(request, _takers_of_whole(candidates))
            return replace(decision, reason=f"the engines' speed is unknown yet; {decision.reason}")
        wholes = sorted(
            [Way(worker.read_cost_s + worker.write_cost_s, worker) for worker in priced], key=_COST
        )
        return _decision(wholes, _splits(priced, size, can_transfer) if request.splittable else [], size)

    def _priced(
        self, request: GenerationRequest, candidates: Sequence[Candidate], size: Size
    ) -> list[Priced]:
        """The candidates whose speed is known: all of a model's, or none.

        The fleet's whole prefill is expected on its prefill workers, wherever it ran so far. Otherwise
        decoding could settle on prefill workers, and prefill on decode workers, for good.
        """
        reading_of, pace_of = self.paces.reading.lately, self.paces.pace
        readings = [reading_of(candidate.worker.ref, request.arrived_s) for candidate in candidates]
        readers = sum(candidate.worker.role is Role.PREFILL for candidate in candidates)
        ahead = max(LEAST_READING_AHEAD, sum([reading.share for reading in readings]) / max(1, readers))
        cached_on = self.prefixes.cached_on(request.prefix_hashes, size.prompt_tokens)
        priced = []
        for candidate, lately in zip(candidates, readings, strict=True):
            ref = candidate.worker.ref
            if (pace := pace_of(ref)) is not None:
                expected = ahead if candidate.worker.role is Role.PREFILL else lately.share
                priced.append(price(candidate, pace, cached_on.get(ref, 0), lately, expected, size))
        return priced


def _takers_of_whole(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Prefill workers take whole requests only if there is no other worker."""
    return [candidate for candidate in candidates if candidate.worker.role is not Role.PREFILL] or candidates


def _splits(priced: Sequence[Priced], size: Size, can_transfer: CanTransfer) -> list[Way]:
    """For each decode worker the way with the prefill worker of the lowest cost.

    The cost of decode hardly depends on the prefill worker, so not every pair is priced.
    """
    readers = sorted(
        [worker for worker in priced if worker.candidate.worker.role is Role.PREFILL], key=_READ_COST
    )
    ways = []
    for writer in priced:
        worker = writer.candidate.worker
        if worker.role is not Role.DECODE:
            continue
        for reader in readers:
            if can_transfer(reader.candidate.worker, worker):
                cost_s = reader.read_cost_s + kv_transfer_s(reader, writer, size) + writer.write_cost_s
                ways.append(Way(cost_s, writer, reader))
                break
    return sorted(ways, key=_COST)


def _decision(wholes: Sequence[Way], splits: Sequence[Way], size: Size) -> Decision:
    """The cheapest way. Of the rejected ways, the best of the other kind is kept first."""
    splits_win = bool(splits) and splits[0].cost_s < wholes[0].cost_s
    ours, others = (splits, wholes) if splits_win else (wholes, splits)
    best = ours[0]
    rest = sorted((*ours[1:KEPT_OPTIONS], *others[1:KEPT_OPTIONS]), key=_COST)
    kept = [best, *others[:1], *rest][:KEPT_OPTIONS]
    candidates = [way.worker.candidate for way in wholes[:KEPT_CANDIDATES] if way.worker is not best.worker]
    return Decision(
        chosen=best.worker.candidate.worker,
        policy=SplitRule.AUTO,
        reason=_reason(best, others[0] if others else None),
        candidates=(best.worker.candidate, *candidates)[:KEPT_CANDIDATES],
        prefill=None if best.prefill is None else best.prefill.candidate.worker,
        options=tuple([option_of(way, size) for way in kept]),
    )


def _reason(best: Way, other: Way | None) -> str:
    chosen = f"{_route(best)}: {_price(best)}"
    if other is None:
        return chosen
    return f"{chosen}, against {_price(other)} {'on' if other.prefill is None else 'by'} {_route(other)}"


def _route(way: Way) -> str:
    name = way.worker.candidate.worker.name
    return f"{name} alone" if way.prefill is None else f"{way.prefill.candidate.worker.name} then {name}"


def _price(way: Way) -> str:
    taken_s = taken_from_others_s(way)
    if taken_s < 0.05 * way.cost_s:
        return duration(way.cost_s)
    return f"{duration(way.cost_s)} ({duration(taken_s)} of it taken from others)"
