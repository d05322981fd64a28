"""Rules for requests at one engine while others have few."""

from __future__ import annotations

from phasewise.core.timeline import Part
from phasewise.diagnosis.analysis.engine_load import EngineLoad, EngineSurroundings, clock_source
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


def uneven_load(case: StartCase) -> Claim | None:
    """Requests wait at one engine while another has free slots."""
    known = _of_fullest_model(case.summary)
    if len(known) < 2:
        return None
    full, most = max(known, key=lambda pair: pair[1].requests_mean)
    idle, least = min(known, key=lambda pair: pair[1].requests_mean)
    uneven = most.requests_mean >= UNEVEN_FACTOR * max(least.requests_mean, 0.5)
    if not uneven or least.waited_share > NOT_WAITING_SHARE:
        return None
    every = [engine_load for _, engine_load in known]
    share = _spared_by_evenness(every) if most.waiting_mean else 0.0
    taken = case.account.take(share, *QUEUED)
    taken += case.account.take(_load_spared(every), Part.PREFILL_OTHERS, Part.STEP_IN_FLIGHT)
    return Claim(
        Cause.UNEVEN_LOAD,
        taken,
        (
            _uneven_fact(case.summary, (full, most), (idle, least)),
            *_starts_there(case, full, idle),
            Fact(f"an even load would save {ms(taken.seconds)} of TTFT", FactSource.DERIVED),
        ),
        "requests wait as long when each goes to the least loaded engine",
    )


def uneven_load_stream(case: StreamCase) -> Claim | None:
    """Streams share one engine's steps while another has few."""
    known = _of_fullest_model(case.summary)
    if len(known) < 2:
        return None
    full, most = max(known, key=lambda pair: pair[1].requests_mean)
    idle, least = min(known, key=lambda pair: pair[1].requests_mean)
    if (
        most.requests_mean < UNEVEN_FACTOR * max(least.requests_mean, 0.5)
        or least.waited_share > NOT_WAITING_SHARE
    ):
        return None
    spared = _load_spared([engine_load for _, engine_load in known])
    stalls = map(stall_part, (StallCause.PREFILL_CHUNK, StallCause.UNKNOWN))
    parts = (TokenPart.PROMPTS, TokenPart.BATCH, *stalls)
    taken = case.account.take(spared, *parts)
    return Claim(
        Cause.UNEVEN_LOAD,
        taken,
        (
            _uneven_fact(case.summary, (full, most), (idle, least)),
            Fact(f"an even load would save {ms(taken.seconds)} per token", FactSource.DERIVED),
        ),
        "streams are as slow when each request goes to the least loaded engine",
    )


def _uneven_fact(
    summary: WindowSummary,
    full: tuple[EngineSurroundings, EngineLoad],
    idle: tuple[EngineSurroundings, EngineLoad],
) -> Fact:
    (busy, most), (spare, least) = full, idle
    return Fact(
        f"{busy.name} had {most.requests_mean:.1f} requests on average, {most.waiting_mean:.1f} of them "
        f"waiting; {spare.name} had {least.requests_mean:.1f}, {least.waiting_mean:.1f} waiting",
        engine_load_source(summary),
    )


def _of_fullest_model(summary: WindowSummary) -> list[tuple[EngineSurroundings, EngineLoad]]:
    """The loads of the engines that could have served the longest queue."""
    known = [(engine, engine.engine_load) for engine in summary.engines if engine.engine_load is not None]
    full = max(known, key=lambda pair: pair[1].waiting_mean, default=None)
    return [pair for pair in known if full is not None and pair[0].model == full[0].model]


def _spared_by_evenness(known: list[EngineLoad]) -> float:
    """The share of the waiting that an even load would save."""
    even = sum(it.requests_mean for it in known) / len(known)
    places = max(engine_load.running_max for engine_load in known)
    waiting = sum(engine_load.waiting_mean for engine_load in known)
    return max(0.0, 1.0 - max(0.0, even - places) * len(known) / waiting)


def _load_spared(known: list[EngineLoad]) -> float:
    """How much less the requests of the fullest engine would wait for others if the load were even.

    An engine that is used for a share u of the time has u / (1 - u) requests in it on average, so that its
    use follows from their number.
    """
    most = max(it.requests_mean for it in known)
    used = sum(engine_load.requests_mean / (1.0 + engine_load.requests_mean) for engine_load in known) / len(
        known
    )
    return 1.0 - used / (1.0 - used) / most


def _starts_there(case: StartCase, full: EngineSurroundings, idle: EngineSurroundings) -> list[Fact]:
    starts = {start.engine: start.ttft_mean_s for start in case.start.by_engine}
    if full.name not in starts or idle.name not in starts:
        return []
    return [
        Fact(
            f"mean TTFT {ms(starts[full.name])} at {full.name}, {ms(starts[idle.name])} at {idle.name}",
            clock_source(case.summary.seen_by),
        )
    ]
