"""Rules for requests at one engine while others have few."""

from __future__ import annotations

from phasewise.core.timeline import Part
from phasewise.diagnosis.analysis.engine_load import EngineLoad, EngineSurroundings
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Fact, FactSource
from phasewise.diagnosis.rules.case import (
    QUEUED,
    Claim,
    StartCase,
    StreamCase,
    TokenPart,
    engine_load_source,
    ms,
    stall_part,
)
from phasewise.diagnosis.rules.queueing import NOT_WAITING_SHARE

UNEVEN_FACTOR = 2.0
"""Engines whose loads differ by less are evenly loaded."""
_Loads = list[tuple[EngineSurroundings, EngineLoad]]


def uneven_load(case: StartCase) -> Claim | None:
    """Requests wait at one engine while another has free slots."""
    known = _by_load(case.summary)
    if not _is_uneven(known):
        return None
    (full, most), (idle, _) = known[0], known[-1]
    share = _spared_by_evenness(known) if most.waiting_mean else 0.0
    taken = case.account.take(share, *QUEUED)
    taken += case.account.take(_load_spared(known), Part.PREFILL_OTHERS, Part.STEP_IN_FLIGHT)
    return Claim(
        Cause.UNEVEN_LOAD,
        taken,
        (
            _uneven_fact(case.summary, known),
            *_starts_there(case, full, idle),
            Fact(f"an even load would save {ms(taken.seconds)} of TTFT", FactSource.DERIVED),
        ),
        "requests wait as long when each goes to the least loaded engine",
    )


def uneven_load_stream(case: StreamCase) -> Claim | None:
    """Streams share one engine's steps while another has few."""
    known = _by_load(case.summary)
    if not _is_uneven(known):
        return None
    stalls = map(stall_part, (StallCause.PREFILL_CHUNK, StallCause.UNKNOWN))
    taken = case.account.take(_load_spared(known), TokenPart.PROMPTS, TokenPart.BATCH, *stalls)
    return Claim(
        Cause.UNEVEN_LOAD,
        taken,
        (
            _uneven_fact(case.summary, known),
            Fact(f"an even load would save {ms(taken.seconds)} per token", FactSource.DERIVED),
        ),
        "streams are as slow when each request goes to the least loaded engine",
    )


def _is_uneven(known: _Loads) -> bool:
    """Whether the first engine has many more requests than the last, at which none had to wait."""
    if len(known) < 2:
        return False
    most, least = known[0][1], known[-1][1]
    uneven = most.requests_mean >= UNEVEN_FACTOR * max(least.requests_mean, 0.5)
    return uneven and least.waited_share <= NOT_WAITING_SHARE


def _uneven_fact(summary: WindowSummary, known: _Loads) -> Fact:
    (busy, most), (spare, least) = known[0], known[-1]
    return Fact(
        f"{busy.name} had {most.requests_mean:.1f} requests on average, {most.waiting_mean:.1f} of them "
        f"waiting; {spare.name} had {least.requests_mean:.1f}, {least.waiting_mean:.1f} waiting",
        engine_load_source(summary),
    )


def _by_load(summary: WindowSummary) -> _Loads:
    """The loads of the engines that could have served the longest queue, the largest first."""
    known = [(engine, engine.engine_load) for engine in summary.engines if engine.engine_load is not None]
    full = max(known, key=lambda pair: pair[1].waiting_mean, default=None)
    able = [pair for pair in known if full is not None and pair[0].model == full[0].model]
    return sorted(able, key=lambda pair: pair[1].requests_mean, reverse=True)


def _spared_by_evenness(known: _Loads) -> float:
    """The share of the waiting that an even load would save."""
    even = sum(engine_load.requests_mean for _, engine_load in known) / len(known)
    slots = max(engine_load.running_max for _, engine_load in known)
    waiting = sum(engine_load.waiting_mean for _, engine_load in known)
    return max(0.0, 1.0 - max(0.0, even - slots) * len(known) / waiting)


def _load_spared(known: _Loads) -> float:
    """How much less the requests of the fullest engine would wait for others if the load were even.

    An engine that is used for a share u of the time has u / (1 - u) requests in it on average, so that its
    use follows from their number.
    """
    used = sum(
        engine_load.requests_mean / (1.0 + engine_load.requests_mean) for _, engine_load in known
    ) / len(known)
    return 1.0 - used / (1.0 - used) / known[0][1].requests_mean


def _starts_there(case: StartCase, full: EngineSurroundings, idle: EngineSurroundings) -> list[Fact]:
    starts = {start.engine: start.ttft_mean_s for start in case.start.by_engine}
    if full.name not in starts or idle.name not in starts:
        return []
    return [
        Fact(
            f"mean TTFT {ms(starts[full.name])} at {full.name}, {ms(starts[idle.name])} at {idle.name}",
            case.summary.seen_by.clock,
        )
    ]
