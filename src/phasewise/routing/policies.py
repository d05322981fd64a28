"""Placement policies by name: each ranks the candidates it is shown. Who may be one is the flow's say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from operator import attrgetter

from phasewise.model.decision import KEPT_CANDIDATES, Candidate, Decision

Policy = Callable[[Sequence[Candidate]], Decision]

_OUTSTANDING = attrgetter("outstanding_tokens", "outstanding_requests")


def least_outstanding(candidates: Sequence[Candidate]) -> Decision:
    """The worker with the fewest tokens still to compute; ties go to the fewest requests, then to order."""
    ranked = nsmallest(KEPT_CANDIDATES, candidates, key=_OUTSTANDING)
    best = ranked[0]
    return Decision(
        chosen=best.worker,
        policy="least_outstanding",
        reason=f"{best.outstanding_tokens} tokens under way, the fewest of {len(candidates)}",
        candidates=tuple(ranked),
    )


POLICIES: dict[str, Policy] = {"least_outstanding": least_outstanding}
