"""Where whole requests go: policies by name, each of which ranks the candidates it is shown.

Who may be a candidate is the flow's say; whether the phases of a request are parted is split.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import count
from operator import attrgetter, itemgetter
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
_RANK = itemgetter(0)


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
    cached_tokens, known_blocks = prefixes.cached_tokens, prefixes.known_blocks

    def place(request: GenerationRequest, candidates: Sequence[Candidate]) -> Decision:
        hashes, prompt_tokens = request.prefix_hashes, request.estimated_prompt_tokens
        ranked: list[tuple[tuple[int, int, int], int, Candidate]] = []
        for it in candidates:
            ref = it.worker.ref
            cached = cached_tokens(ref, hashes, prompt_tokens) if hashes else 0
            rank = (it.outstanding_tokens - cached, it.outstanding_requests, known_blocks(ref))
            ranked.append((rank, cached, it))
        kept = nsmallest(KEPT_CANDIDATES, ranked, key=_RANK)
        _, cached, best = kept[0]
        return Decision(
            chosen=best.worker,
            policy="prefix_affinity",
            reason=f"{cached} of about {prompt_tokens} prompt tokens expected in its cache, "
            f"{best.outstanding_tokens} tokens under way",
            candidates=tuple([it for _, _, it in kept]),
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
