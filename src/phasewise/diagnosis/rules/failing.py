"""Rules for requests that get no answer, or whose clients do not wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from phasewise.core.timeline import Outcome
from phasewise.core.units import counted
from phasewise.diagnosis.analysis.engine_load import clock_source
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, Finding, Phase
from phasewise.diagnosis.rules.case import percent
from phasewise.diagnosis.rules.standstill import hung_facts

AFFECTED_SHARE = 0.1
"""Requests fail if at least this share was not served."""
CANCELLED_SHARE = 0.5
"""Users stop an answer now and then; half of all answers is something else."""
NAMED_REASONS = 3


def fails(summary: WindowSummary) -> bool:
    """Whether too many requests were not served."""
    unserved = {Outcome.FAILED, Outcome.TIMED_OUT, Outcome.REJECTED}
    failed = sum(count for outcome, count in summary.outcomes if outcome in unserved)
    return failed > 0 and failed >= AFFECTED_SHARE * summary.workload.requests


def are_cancelled(summary: WindowSummary) -> bool:
    """Whether most clients left before the end of their answers."""
    cancelled = dict(summary.outcomes).get(Outcome.CANCELLED, 0)
    return cancelled > 0 and cancelled >= CANCELLED_SHARE * summary.workload.requests


def failures(summary: WindowSummary) -> Iterator[Finding]:
    """Why requests have no answer."""
    if facts := hung_facts(summary):
        yield _failure(Cause.ENGINE_HUNG, 1.0, facts, "the engine makes a step now")
    requests = max(1, summary.workload.requests)
    rejected = sum(count for _, count in summary.rejections)
    if rejected and rejected >= AFFECTED_SHARE * requests:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in summary.rejections[:NAMED_REASONS])
        words = f"{rejected} of {counted(requests, 'request')} were rejected: {reasons}"
        yield _failure(
            Cause.REQUESTS_REJECTED,
            rejected / requests,
            (Fact(words, clock_source(summary.seen_by)),),
            "the same requests are accepted when they are sent again",
        )
    if are_cancelled(summary):
        cancelled = dict(summary.outcomes)[Outcome.CANCELLED]
        share = min(1.0, cancelled / requests)
        words = f"{percent(share)} of {counted(requests, 'request')} were cancelled by their clients"
        yield _failure(
            Cause.CLIENTS_CANCEL,
            share,
            (Fact(words, clock_source(summary.seen_by)),),
            "clients wait for the end of their answers",
        )


def _failure(cause: Cause, share: float, facts: tuple[Fact, ...], refuted_by: str) -> Finding:
    return Finding(Phase.FAILING, cause, share, 0.0, facts, Confidence.HIGH, refuted_by)
