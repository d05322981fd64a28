"""Where whole requests go: policies by name, each of which ranks the candidates it is shown.

Who may be a candidate is the flow's say; whether the phases of a request are parted is split.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import count
from operator import attrgetter
from typing import Protocol

from phasewise.model.decision import KEPT_CANDIDATES, Candidate, Decision
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Worker
from phasewise.state.prefix_index import PrefixIndex

WholePolicy = Callable[[GenerationRequest, Sequence[Candidate]], Decision]
"""Places all of a request on one of the candidates, of which there is at least one."""
HandsOver = Callable[[Worker, Worker], bool]
"""Whether KV may be handed over from the first worker to the second."""

_OUTSTANDING = attrgetter("outstanding_tokens", "outstanding_requests")


class Policy(Protocol):
    """Places a request, whole or in two parts."""

    def __call__(
        self, request: GenerationRequest, candidates: Sequence[Candidate], hands_over: HandsOver
    ) -> Decision:
        """Choose among candidates of all roles, of which there is at least one."""


def whole(policy: WholePolicy) -> Policy:
    """The policy of a fleet whose workers all take both phases."""
    return lambda request, candidates, hands_over: policy(request, candidates)


def least_outstanding(request: GenerationRequest, candidates: Sequence[Candidate]) -> Decision:
    """The worker with the fewest tokens still to compute; ties go to the fewest requests, then to order."""
    ranked = nsmallest(KEPT_CANDIDATES, candidates, key=_OUTSTANDING)
    best = ranked[0]
    return Decision(
        chosen=best.worker,
        policy="least_outstanding",
        reason=f"{best.outstanding_tokens} tokens under way, the fewest of {len(candidates)}",
        candidates=tuple(ranked),
    )


def prefix_affinity(prefixes: PrefixIndex) -> WholePolicy:
    """The worker with the fewest tokens to compute once it has this request, but for what it has in cache.

    So a conversation stays where its KV is for as long as going there costs less than to compute it anew
    elsewhere. Equals go to the fewest requests; then to who has been given the least to remember, which
    spreads new conversations over idle workers.
    """

    def place(request: GenerationRequest, candidates: Sequence[Candidate]) -> Decision:
        prompt_tokens = request.estimated_prompt_tokens
        cached_on = prefixes.cached_on(request.prefix_hashes, prompt_tokens)

        def left(it: Candidate) -> tuple[int, int]:
            return it.outstanding_tokens - cached_on.get(it.worker.ref, 0), it.outstanding_requests

        cost = left if cached_on else _OUTSTANDING
        ranked = nsmallest(KEPT_CANDIDATES, candidates, key=cost)
        least = cost(ranked[0])
        if len(ranked) > 1 and cost(ranked[1]) == least:
            # All of them, though not all are kept: otherwise a large idle fleet's last ones stay idle.
            equals = [it for it in candidates if cost(it) == least]
            equals.sort(key=lambda it: prefixes.known_blocks(it.worker.ref))
            ranked = [*equals, *ranked[len(equals) :]][:KEPT_CANDIDATES]
        best = ranked[0]
        return Decision(
            chosen=best.worker,
            policy="prefix_affinity",
            reason=f"{cached_on.get(best.worker.ref, 0)} of about {prompt_tokens} prompt tokens expected "
            f"in its cache, {best.outstanding_tokens} tokens under way",
            candidates=tuple(ranked),
        )

    return place


def round_robin() -> WholePolicy:
    """One after the other, whatever they have to do: what others are compared with.

    The only policy that keeps something of its own: whose turn it is.
    """
    turns = count()

    def place(request: GenerationRequest, candidates: Sequence[Candidate]) -> Decision:
        turn = next(turns) % len(candidates)
        in_order = (*candidates[turn:], *candidates[:turn])
        return Decision(
            chosen=in_order[0].worker,
            policy="round_robin",
            reason=f"its turn among {len(candidates)}",
            candidates=in_order[:KEPT_CANDIDATES],
        )

    return place


POLICIES: dict[str, Callable[[PrefixIndex], WholePolicy]] = {
    "least_outstanding": lambda prefixes: least_outstanding,
    "prefix_affinity": prefix_affinity,
    "round_robin": lambda prefixes: round_robin(),
}
"""How each policy is made for one gateway."""
READS_PREFIXES = frozenset({"prefix_affinity"})
"""Policies to which a request's prefix hashes matter."""
