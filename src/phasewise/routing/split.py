"""Whether a request's prompt is computed on another worker than its answer, and on which two.

Pure. What engines take is costs/pace_book.py's to know, what they hold in cache state/prefix_index.py's, and
what each way to serve a request costs by that split_terms.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from phasewise.costs.pace_book import PaceBook
from phasewise.model.decision import KEPT_CANDIDATES, KEPT_OPTIONS, Candidate, Decision
from phasewise.model.hand_over import SplitRule
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Role
from phasewise.routing.policies import HandsOver, WholePolicy
from phasewise.routing.split_terms import (
    Priced,
    Size,
    Way,
    hand_over_s,
    option_of,
    price,
    taken_from_others_s,
)
from phasewise.state.prefix_index import PrefixIndex

LEAST_READING_AHEAD = 0.2
"""Of a prefill worker's time, before anything was seen: who has set one up expects prompts for it."""
_COST, _READ_COST = attrgetter("cost_s"), attrgetter("read_cost_s")


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """Places requests of a fleet that has prefill workers; `whole` places those that no figures decide on.

    A hand-over that was never timed cannot be held against anything. Somebody has to be the first, though:
    one that `tries_untimed` takes it to cost nothing, where no canary tries it before requests do.
    """

    rule: SplitRule
    threshold_tokens: int
    whole: WholePolicy
    paces: PaceBook
    prefixes: PrefixIndex
    tries_untimed: bool = False

    def __call__(
        self, request: GenerationRequest, candidates: Sequence[Candidate], hands_over: HandsOver
    ) -> Decision:
        """Part the phases where the rule says so and a pair can hand over; else place the whole."""
        if self.rule is SplitRule.AUTO:
            return self._cheapest(request, candidates, hands_over)
        if self.rule is SplitRule.NEVER:
            return self.whole(request, candidates)
        return self._by_rule(request, candidates, hands_over)

    # --- always, threshold --------------------------------------------------------------------------------

    def _by_rule(
        self, request: GenerationRequest, candidates: Sequence[Candidate], hands_over: HandsOver
    ) -> Decision:
        decision = self.whole(request, _takers_of_whole(candidates))
        if not self._wants_split(request) or decision.chosen.role is not Role.DECODE:
            return decision
        readers = [
            it
            for it in candidates
            if it.worker.role is Role.PREFILL and hands_over(it.worker, decision.chosen)
        ]
        if not readers:
            return decision
        prefill = min(readers, key=lambda it: it.unread_tokens).worker
        return replace(decision, policy=self.rule, prefill=prefill)

    def _wants_split(self, request: GenerationRequest) -> bool:
        if not request.splittable:
            return False
        return (
            self.rule is SplitRule.ALWAYS or self.paces.sizes.prompt_tokens(request) >= self.threshold_tokens
        )

    # --- auto ---------------------------------------------------------------------------------------------

    def _cheapest(
        self, request: GenerationRequest, candidates: Sequence[Candidate], hands_over: HandsOver
    ) -> Decision:
        sizes = self.paces.sizes
        size = Size(sizes.prompt_tokens(request), sizes.output_tokens(request))
        priced = self._priced(request, candidates, size)
        if not priced:
            decision = self.whole(request, _takers_of_whole(candidates))
            return replace(decision, reason=f"the engines' pace is not known yet; {decision.reason}")
        wholes = sorted([Way(it.read_cost_s + it.write_cost_s, it) for it in priced], key=_COST)
        may_split = request.splittable and (self.tries_untimed or priced[0].pace.fetch_known)
        return _decision(wholes, _splits(priced, size, hands_over) if may_split else [], size)

    def _priced(
        self, request: GenerationRequest, candidates: Sequence[Candidate], size: Size
    ) -> list[Priced]:
        """The candidates whose pace is known: all of a model's, or none.

        What the fleet reads is expected to be read by its prefill workers, whoever has read it so far.
        Otherwise answers could settle on them, and prompts among the streams of decode workers, for good.
        """
        reading_of, pace_of = self.paces.reading.lately, self.paces.pace
        readings = [reading_of(it.worker.ref, request.arrived_s) for it in candidates]
        readers = sum(it.worker.role is Role.PREFILL for it in candidates)
        ahead = max(LEAST_READING_AHEAD, sum([it.share for it in readings]) / max(1, readers))
        cached_on = self.prefixes.cached_on(request.prefix_hashes, size.prompt_tokens)
        priced = []
        for candidate, lately in zip(candidates, readings, strict=True):
            ref = candidate.worker.ref
            if (pace := pace_of(ref)) is not None:
                expected = ahead if candidate.worker.role is Role.PREFILL else lately.share
                priced.append(price(candidate, pace, cached_on.get(ref, 0), lately, expected, size))
        return priced


def _takers_of_whole(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Prefill workers take whole requests only where there is nobody else."""
    return [it for it in candidates if it.worker.role is not Role.PREFILL] or candidates


def _splits(priced: Sequence[Priced], size: Size, hands_over: HandsOver) -> list[Way]:
    """For each decode worker the way from the prefill worker that reads the prompt at the least cost.

    A decode worker's part of the price hardly depends on who reads, so that not every pair is looked at.
    """
    readers = sorted([it for it in priced if it.candidate.worker.role is Role.PREFILL], key=_READ_COST)
    ways = []
    for writer in priced:
        worker = writer.candidate.worker
        if worker.role is not Role.DECODE:
            continue
        for reader in readers:
            if hands_over(reader.candidate.worker, worker):
                cost_s = reader.read_cost_s + hand_over_s(reader, writer, size) + writer.write_cost_s
                ways.append(Way(cost_s, writer, reader))
                break
    return sorted(ways, key=_COST)


def _decision(wholes: Sequence[Way], splits: Sequence[Way], size: Size) -> Decision:
    """The cheapest way; of what it was chosen over, the best of the other kind is kept before all others."""
    splits_win = bool(splits) and splits[0].cost_s < wholes[0].cost_s
    ours, others = (splits, wholes) if splits_win else (wholes, splits)
    best = ours[0]
    rest = sorted((*ours[1:KEPT_OPTIONS], *others[1:KEPT_OPTIONS]), key=_COST)
    kept = [best, *others[:1], *rest][:KEPT_OPTIONS]
    candidates = [it.worker.candidate for it in wholes[:KEPT_CANDIDATES] if it.worker is not best.worker]
    return Decision(
        chosen=best.worker.candidate.worker,
        policy=SplitRule.AUTO,
        reason=_reason(best, others[0] if others else None),
        candidates=(best.worker.candidate, *candidates)[:KEPT_CANDIDATES],
        prefill=None if best.prefill is None else best.prefill.candidate.worker,
        options=tuple([option_of(way, size) for way in kept]),
    )


def _reason(best: Way, other: Way | None) -> str:
    told = f"{_route(best)}: {_price(best)}"
    if other is None:
        return told
    return f"{told}, against {_price(other)} {'on' if other.prefill is None else 'by'} {_route(other)}"


def _route(way: Way) -> str:
    name = way.worker.candidate.worker.name
    return f"{name} alone" if way.prefill is None else f"{way.prefill.candidate.worker.name} then {name}"


def _price(way: Way) -> str:
    taken_s = taken_from_others_s(way)
    if taken_s < 0.05 * way.cost_s:
        return _seconds(way.cost_s)
    return f"{_seconds(way.cost_s)} ({_seconds(taken_s)} of it taken from others)"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"
