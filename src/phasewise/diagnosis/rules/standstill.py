"""Rules for an engine that stands still with requests in it, in either phase: for a while, or now."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.core.timeline import Part
from phasewise.core.units import counted
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.analysis.standstill import Standstill
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource
from phasewise.diagnosis.rules.case import (
    UNEXPLAINED,
    Claim,
    StartCase,
    StreamCase,
    Taken,
    TokenPart,
    ms,
    stall_part,
)
from phasewise.diagnosis.rules.stalls import stall_facts

NAMED = 3
"""The most standstills that are named as evidence."""
_PAUSES = (StallCause.PAUSE, StallCause.ENGINE_IDLE, StallCause.SLOW_STEP)


def hung_start(case: StartCase) -> Claim | None:
    """The engine has made no step for a while and requests wait in it now.

    Those requests have no first token yet: what they lost is not in the parts of TTFT, and counts for this
    cause.
    """
    return _hung(case.summary, Taken()) if _lasting(case.summary) else None


def hung_stream(case: StreamCase) -> Claim | None:
    """The same for streams that get no more tokens."""
    if not _lasting(case.summary):
        return None
    return _hung(case.summary, case.account.take(1.0, stall_part(StallCause.ENGINE_IDLE)))


def paused_start(case: StartCase) -> Claim | None:
    """The engine stood still before first tokens came."""
    if not case.start.paused_s:
        return None
    parts = (Part.STEP_IN_FLIGHT, Part.ENGINE_QUEUE, Part.PREFILL, Part.PREFILL_OTHERS, UNEXPLAINED)
    taken = case.account.take_seconds(case.start.paused_s, *parts)
    return _paused(case.summary, taken, f"late requests waited {ms(taken.seconds)} for it on average")


def paused_stream(case: StreamCase) -> Claim | None:
    """The engine had streams to serve and no step ended, or one took long without a visible reason."""
    paused_s = case.account.seconds(TokenPart.PAUSED)
    taken = case.account.take(1.0, TokenPart.PAUSED, *map(stall_part, _PAUSES))
    cost = f"this costs {ms(paused_s)} per token of slow streams"
    return _paused(case.summary, taken, cost, stall_facts(case, case.stalls(*_PAUSES)))


def _paused(summary: WindowSummary, taken: Taken, cost: str, stalls: Sequence[Fact] = ()) -> Claim | None:
    if not taken.is_something:
        return None
    past = [standstill for standstill in summary.standstills if not standstill.hangs]
    return Claim(
        Cause.ENGINE_PAUSES,
        taken,
        (*_named(past, summary), Fact(cost, _source(summary)), *stalls),
        "the engine's steps follow each other without a gap at those times",
        Confidence.HIGH if past else Confidence.MEDIUM,
        seen_itself=bool(past),
    )


def _hung(summary: WindowSummary, taken: Taken) -> Claim:
    return Claim(
        Cause.ENGINE_HUNG,
        taken,
        tuple(
            Fact(
                f"{standstill.engine} has made no step for {ms(standstill.seconds)} "
                f"with {counted(standstill.requests, 'request')} open",
                _source(summary),
            )
            for standstill in _lasting(summary)
        ),
        "the engine makes a step now",
    )


def hung_facts(summary: WindowSummary) -> tuple[Fact, ...]:
    """What is seen of engines that stand still now; empty if none does."""
    return _hung(summary, Taken()).facts


def _lasting(summary: WindowSummary) -> list[Standstill]:
    return [standstill for standstill in summary.standstills if standstill.hangs]


def _named(found: Sequence[Standstill], summary: WindowSummary) -> list[Fact]:
    longest = sorted(found, key=lambda standstill: -standstill.seconds)[:NAMED]
    return [
        Fact(
            f"{standstill.engine} made no step for {ms(standstill.seconds)} "
            f"with {counted(standstill.requests, 'request')} in it",
            _source(summary),
        )
        for standstill in longest
    ]


def _source(summary: WindowSummary) -> FactSource:
    return FactSource.COUNTERS if summary.seen_by is SeenBy.COUNTERS else FactSource.STEP_RECORD
