"""Placement policies for whole requests, by name. Each ranks the candidates that the flow gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from heapq import nsmallest
from itertools import count
from operator import attrgetter
from typing import Protocol

from phasewise.core.decision import KEPT_CANDIDATES, Candidate, Decision
from phasewise.core.request import GenerationRequest
from phasewise.core.worker import Worker, WorkerRef
from phasewise.scheduling.prefix_index import PrefixIndex

WholePolicy = Callable[[GenerationRequest, Sequence[Candidate]], Decision]
"""Places a whole request on one of at least one candidate."""
CanTransfer = Callable[[Worker, Worker], bool]
"""Whether KV may be transferred from the first worker to the second."""

_OUTSTANDING = attrgetter("outstanding_tokens", "outstanding_requests")


class Policy(Protocol):
    """Places a request, whole or disaggregated."""

    def __call__(
        self, request: GenerationRequest, candidates: Sequence[Candidate], can_transfer: CanTransfer
    ) -> Decision:
        """Choose among at least one candidate, of all roles."""


def whole(policy: WholePolicy) -> Policy:
    """The policy of a fleet whose workers all run both phases."""
    return lambda request, candidates, can_transfer: policy(request, candidates)


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
    """The worker with the fewest tokens to compute, this request included and its cached tokens excluded.

    So a conversation stays where its KV is while that costs less than computing it again elsewhere. Ties go
    to the fewest requests, then to the worker with the fewest known blocks, which spreads new conversations
    over idle workers. Where several gateways place a conversation's turns and share no prefixes, its home
    counts as holding the prompt: they agree on it, and another worker needs a queue shorter by a whole one.
    """

    def place(request: GenerationRequest, candidates: Sequence[Candidate]) -> Decision:
        prompt_tokens = request.estimated_prompt_tokens
        hashes = request.prefix_hashes
        cached_on = prefixes.cached_on(hashes, prompt_tokens) if hashes else {}

        if request.conversation and not prefixes.is_shared:
            cached_on[home_of(request.conversation, candidates)] = prompt_tokens

        def left(candidate: Candidate) -> tuple[int, int]:
            return candidate.outstanding_tokens - cached_on.get(
                candidate.worker.ref, 0
            ), candidate.outstanding_requests

        cost = left if cached_on else _OUTSTANDING
        ranked = nsmallest(KEPT_CANDIDATES, candidates, key=cost)
        least = cost(ranked[0])
        if len(ranked) > 1 and cost(ranked[1]) == least:
            # Among all ties, not just those kept: otherwise the last workers of a large idle fleet stay idle.
            equals = [candidate for candidate in candidates if cost(candidate) == least]
            equals.sort(key=lambda candidate: prefixes.known_blocks(candidate.worker.ref))
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


def home_of(conversation: int, candidates: Sequence[Candidate]) -> WorkerRef:
    """The worker that every gateway finds for a conversation, by rendezvous hashing: if a worker comes or
    goes, only its own conversations move.
    """

    def score(candidate: Candidate) -> int:
        mixed = (conversation ^ _number(candidate.worker.name)) * _ODD & _64_BITS
        return (mixed ^ mixed >> 32) * _ODD & _64_BITS

    return max(candidates, key=score).worker.ref


_ODD = 0x9E3779B97F4A7C15
_64_BITS = (1 << 64) - 1


@cache
def _number(name: str) -> int:
    """The same in every process, which Python's own hash of a string is not."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def round_robin() -> WholePolicy:
    """One worker after the other, whatever its load: the baseline for comparisons.

    The only policy with state of its own.
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
"""Builds each policy for one gateway."""
READS_PREFIXES = frozenset({"prefix_affinity"})
"""Policies that use a request's prefix hashes."""
