"""Placement policies by name: each ranks the candidates it is shown. Who may be one is the flow's say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phasewise.model.decision import Candidate, Decision

Policy = Callable[[Sequence[Candidate]], Decision]


def least_outstanding(candidates: Sequence[Candidate]) -> Decision:
    """The worker with the fewest tokens still to compute; ties go to the fewest requests, then to order."""
    ranked = sorted(candidates, key=lambda it: (it.outstanding_tokens, it.outstanding_requests))
    best = ranked[0]
    return Decision(
        chosen=best.worker,
        policy="least_outstanding",
        reason=f"{best.outstanding_tokens} tokens under way, the fewest of {len(ranked)}",
        candidates=tuple(ranked),
    )


POLICIES: dict[str, Policy] = {"least_outstanding": least_outstanding}
