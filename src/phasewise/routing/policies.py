"""Where whole requests go: policies by name, each of which ranks the candidates it is shown.

Who may be a candidate is the flow's say; whether the phases of a request are parted is split.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from operator import attrgetter
from typing import Protocol

from phasewise.model.decision import KEPT_CANDIDATES, Candidate, Decision
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Worker

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


POLICIES: dict[str, WholePolicy] = {"least_outstanding": least_outstanding}
