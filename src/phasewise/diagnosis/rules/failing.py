"""Rules for requests that get no answer, or whose clients do not wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.core.decision import RejectReason
from phasewise.core.own_rejections import OWN_REJECTIONS
from phasewise.core.timeline import Outcome
from phasewise.core.units import counted
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource, Finding, Phase
from phasewise.diagnosis.rules.affected import AFFECTED_SHARE, UNSERVED, too_many_fail
from phasewise.diagnosis.rules.case import percent
from phasewise.diagnosis.rules.standstill import hung_facts

CANCELLED_SHARE = 0.5
"""Users stop an answer now and then; half of all answers is something else."""
NAMED_REASONS = NAMED_ENGINES = 3
_REJECTED: dict[Cause, tuple[str, str]] = {
    Cause.REQUESTS_REJECTED: ("were rejected", "the same requests are accepted when they are sent again"),
    Cause.GATEWAY_REJECTS: (
        "were rejected by the gateway",
        "as many are rejected for the same reasons after that change",
    ),
    Cause.OVERLOAD: (
        "waited in vain at the gateway",
        "as many are rejected at half the load, or with more slots for the same engines",
    ),
    Cause.ENGINE_DOWN: ("found no engine in service", "the gateway had an engine of the model all the time"),
}
"""How rejected requests are counted in words, and what would refute their cause."""


def fails(summary: WindowSummary) -> bool:
    """Whether too many requests were not served."""
    failed = sum(count for outcome, count in summary.outcomes if outcome in UNSERVED)
    return too_many_fail(failed, summary.workload.requests)


def are_cancelled(summary: WindowSummary) -> bool:
    """Whether most clients left before the end of their answers."""
    cancelled = dict(summary.outcomes).get(Outcome.CANCELLED, 0)
    return cancelled > 0 and cancelled >= CANCELLED_SHARE * summary.workload.requests


def failures(summary: WindowSummary) -> Iterator[Finding]:
    """Why requests have no answer."""
    if facts := hung_facts(summary):
        yield _failure(Cause.ENGINE_HUNG, 1.0, facts, "the engine makes a step now")
    requests = max(1, summary.workload.requests)
    out = [engine for engine in summary.engines if engine.out_of_service]
    if out and fails(summary):
        yield _engine_down(summary, out[:NAMED_ENGINES], requests)
    # Engines that are out of service explain those for which none was left.
    explained = {RejectReason.NO_HEALTHY_WORKER} if out else set()
    others = [each for each in summary.rejections if each[0] not in explained]
    if (rejected := sum(count for _, count in others)) and rejected >= AFFECTED_SHARE * requests:
        yield from _rejections(others, rejected, requests, summary.seen_by.clock)
    if are_cancelled(summary):
        cancelled = dict(summary.outcomes)[Outcome.CANCELLED]
        share = min(1.0, cancelled / requests)
        words = f"{percent(share)} of {counted(requests, 'request')} were cancelled by their clients"
        yield _failure(
            Cause.CLIENTS_CANCEL,
            share,
            (Fact(words, summary.seen_by.clock),),
            "clients wait for the end of their answers",
        )


def _rejections(
    rejections: Sequence[tuple[str, int]], rejected: int, requests: int, source: FactSource
) -> Iterator[Finding]:
    """A finding for each cause of a tenth of the rejections; the gateway's own reasons are explained."""
    for cause, (words, refuted_by) in _REJECTED.items():
        reasons = [each for each in rejections if rejected_by(each[0]) is cause]
        count = sum(each[1] for each in reasons)
        if not count or count < AFFECTED_SHARE * rejected:
            continue
        counts = Fact(f"{count} of {counted(requests, 'request')} {words}{_by_reason(reasons)}", source)
        own = [(reason, OWN_REJECTIONS[reason]) for reason, _ in reasons if reason in OWN_REJECTIONS]
        meanings = [
            Fact(f"{reason}: {known.meaning}; {known.fix}", FactSource.GATEWAY)
            for reason, known in own[:NAMED_REASONS]
        ]
        yield _failure(cause, count / requests, (counts, *meanings), refuted_by)


def rejected_by(reason: str) -> Cause:
    """The cause of rejections for this reason: the engine's own status, or one of the gateway's."""
    if reason in {RejectReason.QUEUE_FULL, RejectReason.QUEUE_TIMEOUT}:
        return Cause.OVERLOAD
    if reason == RejectReason.NO_HEALTHY_WORKER:
        return Cause.ENGINE_DOWN
    return Cause.GATEWAY_REJECTS if reason in OWN_REJECTIONS else Cause.REQUESTS_REJECTED


def _engine_down(summary: WindowSummary, out: Sequence[EngineSurroundings], requests: int) -> Finding:
    unserved = sum(count for outcome, count in summary.outcomes if outcome in UNSERVED)
    words = f"{unserved} of {counted(requests, 'request')} were not served{_by_reason(summary.rejections)}"
    facts = [Fact(f"{engine.name} is {engine.out_of_service}", FactSource.GATEWAY) for engine in out]
    return _failure(
        Cause.ENGINE_DOWN,
        min(1.0, unserved / requests),
        (*facts, Fact(words, summary.seen_by.clock)),
        "the gateway uses these engines now",
    )


def _by_reason(rejections: Sequence[tuple[str, int]]) -> str:
    reasons = ", ".join(f"{reason} ({count})" for reason, count in rejections[:NAMED_REASONS])
    return f": {reasons}" if reasons else ""


def _failure(cause: Cause, share: float, facts: tuple[Fact, ...], refuted_by: str) -> Finding:
    return Finding(Phase.FAILING, cause, share, 0.0, facts, Confidence.HIGH, refuted_by)
