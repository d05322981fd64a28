"""Rules about the engine's machine, for both phases: cold steps, shared cores, a busy front end."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.core.timeline import Part
from phasewise.core.units import elapsed
from phasewise.diagnosis.analysis.engine_load import YOUNG_S, EngineSurroundings, SeenBy
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource
from phasewise.diagnosis.rules.case import (
    STEP_PARTS,
    UNEXPLAINED,
    Claim,
    StartCase,
    StreamCase,
    Taken,
    TokenPart,
    mean_of,
    ms,
    percent,
    queue_relief,
    stall_part,
    worst_of,
)

STARVED_SHARE = 0.15
"""Threads that wait for a core less than this share of their time are not starved."""
FRONT_END_FULL_CORES = 0.8
"""The front end's Python runs on one core at a time, so a use near one core is saturation."""


def cold_start(case: StartCase) -> Claim | None:
    """Cold steps took several times as long as later ones."""
    cold_s = case.start.cold_s or 0.0
    taken = case.account.take_seconds(cold_s, Part.PREFILL, Part.PREFILL_OTHERS, Part.STEP_IN_FLIGHT)
    # A request that arrives during such a step may be admitted only after it, and the engine does not time
    # that wait.
    for elsewhere in (Part.ENGINE_QUEUE, UNEXPLAINED):
        taken += case.account.take_seconds(cold_s - taken.seconds, elsewhere)
    return _cold(case.summary, taken, "start as late") if taken.seconds > 0 else None


def cold_stream(case: StreamCase) -> Claim | None:
    """The same, while streams were running."""
    taken = case.account.take(1.0, TokenPart.COLD, stall_part(StallCause.COLD_STEP))
    return _cold(case.summary, taken, "stream as slowly") if taken.is_something else None


def _cold(summary: WindowSummary, taken: Taken, as_before: str) -> Claim:
    facts = [
        Fact(
            f"cold steps took {ms(taken.seconds)} more, per request or token, than later ones "
            "of the same size",
            FactSource.COUNTERS if summary.seen_by is SeenBy.COUNTERS else FactSource.STEP_RECORD,
        )
    ]
    ages = [engine.age_s for engine in summary.engines if engine.age_s is not None]
    if ages:
        facts.append(
            Fact(
                f"the youngest engine was {elapsed(min(ages))} old when the window began", FactSource.COUNTERS
            )
        )
    return Claim(
        Cause.COLD_START,
        taken,
        tuple(facts),
        f"the same requests, sent again to the warm engine, {as_before}",
        Confidence.HIGH if _just_started(summary, ages) else Confidence.LOW,
    )


def _just_started(summary: WindowSummary, ages: Sequence[float]) -> bool:
    """Whether an engine was started recently, by its age or by the numbers of its cold steps."""
    at_its_start = summary.start is not None and summary.start.cold_from_its_start
    return at_its_start or min(ages, default=YOUNG_S) < YOUNG_S


def starved_start(case: StartCase) -> Claim | None:
    """The engine's threads wait for cores that other programs use, which slows down everything."""
    share = starved_share(case.summary)
    if not share:
        return None
    taken = case.account.take(share, Part.PREFILL, Part.PREFILL_OTHERS, Part.STEP_IN_FLIGHT)
    taken += case.account.take(queue_relief(case.summary, share, capped=True), Part.ENGINE_QUEUE)
    return _starved(case.summary, taken)


def starved_stream(case: StreamCase) -> Claim | None:
    """The same, step by step; of a pause it claims only its share, because threads that share a core get it
    every few milliseconds."""
    share = starved_share(case.summary)
    if not share:
        return None
    engine_made = (*STEP_PARTS, TokenPart.PROMPTS, TokenPart.PREEMPTED, TokenPart.PAUSED)
    taken = case.account.take(share, *engine_made, *map(stall_part, _STALLS_OF_ENGINE))
    return _starved(case.summary, taken)


_STALLS_OF_ENGINE = (
    StallCause.PREFILL_CHUNK,
    StallCause.PREEMPTION,
    StallCause.SLOW_STEP,
    StallCause.ENGINE_IDLE,
    StallCause.PAUSE,
    # Without a step record the engine's work is unknown, but it lacked a core throughout.
    StallCause.UNKNOWN,
)


def starved_share(summary: WindowSummary) -> float:
    """The share of time that the engines waited for a core; 0 if none was starved."""
    return mean_of(summary.engines, _noticeable_wait) or 0.0


def _noticeable_wait(engine: EngineSurroundings) -> float | None:
    share = engine.cpu_wait_share
    if share is None:
        return None
    # Its own threads have its cores, if there are too many.
    return share if share >= STARVED_SHARE and not _has_too_many_threads(engine) else 0.0


def _starved(summary: WindowSummary, taken: Taken) -> Claim:
    worst = worst_of(summary.engines, lambda engine: engine.cpu_wait_share)
    facts = []
    if worst is not None and worst.cpu_wait_share is not None:
        facts.append(
            Fact(
                f"{percent(worst.cpu_wait_share)} of the time that {worst.name} was ready to run, "
                f"other programs had its cores{f' (by {worst.cpu_source})' if worst.cpu_source else ''}",
                FactSource.HOST,
            )
        )
        if worst.host_busy_share is not None:
            facts.append(Fact(f"its host was {percent(worst.host_busy_share)} busy", FactSource.HOST))
    facts.append(Fact(f"this costs {ms(taken.seconds)} of the engine's time", FactSource.DERIVED))
    return Claim(
        Cause.ENGINE_STARVED,
        taken,
        tuple(facts),
        "steps of the same size take as long with nothing else on the engine's cores",
        seen_itself=True,
    )


PER_THREAD_TOO_MANY = 0.16
"""Each thread beyond the cores adds so much of a decode step: threads meet after every layer. Measured with
llama.cpp on two cores, 0.15 to 0.21 with 4 to 32 threads; prompts took no longer."""


def threads_stream(case: StreamCase) -> Claim | None:
    """The engine computes on more threads than it has cores: in each step they wait for each other."""
    engine = _with_too_many_threads(case.summary)
    if engine is None:
        return None
    return _threads(engine, case.account.take(_threads_share(engine), *STEP_PARTS))


def _with_too_many_threads(summary: WindowSummary) -> EngineSurroundings | None:
    return next(filter(_has_too_many_threads, summary.engines), None)


def _has_too_many_threads(engine: EngineSurroundings) -> bool:
    return bool(engine.cores) and engine.settings.get("threads", 0) > (engine.cores or 0)


def _threads_share(engine: EngineSurroundings) -> float:
    """Of a decode step's time: what the threads too many add to it."""
    added = PER_THREAD_TOO_MANY * (engine.settings["threads"] - (engine.cores or 0))
    return added / (1.0 + added)


def _threads(engine: EngineSurroundings, taken: Taken) -> Claim:
    return Claim(
        Cause.THREADS_HIGH,
        taken,
        (
            Fact(
                f"{engine.name} computes on {engine.settings['threads']} threads and has "
                f"{engine.cores} cores",
                FactSource.HOST,
            ),
            Fact(f"this costs about {ms(taken.seconds)} of the engine's time", FactSource.DERIVED),
        ),
        "steps of the same size take as long with one thread per core",
        Confidence.MEDIUM,
        seen_itself=True,
    )


SLOWER_FORMAT_SHARE = 0.6
"""What a step of a format without instructions loses: seen on such a processor, float32 was 2.8x as fast."""


def number_format_start(case: StartCase) -> Claim | None:
    """The processor emulates the engine's number format, so that every step takes long."""
    if not _slow_formats(case.summary):
        return None
    parts = (Part.PREFILL, Part.PREFILL_OTHERS, Part.STEP_IN_FLIGHT)
    return _number_format(case.summary, case.account.take(SLOWER_FORMAT_SHARE, *parts))


def number_format_stream(case: StreamCase) -> Claim | None:
    """The same, step by step."""
    if not _slow_formats(case.summary):
        return None
    parts = (*STEP_PARTS, TokenPart.PROMPTS, stall_part(StallCause.PREFILL_CHUNK))
    return _number_format(case.summary, case.account.take(SLOWER_FORMAT_SHARE, *parts))


def _slow_formats(summary: WindowSummary) -> list[EngineSurroundings]:
    return [engine for engine in summary.engines if engine.slow_format is not None]


def _number_format(summary: WindowSummary, taken: Taken) -> Claim:
    (first, *_) = _slow_formats(summary)
    return Claim(
        Cause.NUMBER_FORMAT,
        taken,
        (
            Fact(
                f"{first.name} computes in {first.slow_format} on a processor without instructions for it",
                FactSource.HOST,
            ),
            Fact(f"this costs about {ms(taken.seconds)} of the engine's time", FactSource.DERIVED),
        ),
        "steps of the same size take as long in float32",
        Confidence.MEDIUM,
    )


def front_end_start(case: StartCase) -> Claim | None:
    """The engine's API process is out of CPU: requests and replies wait in it."""
    full = _full_front_end(case.summary)
    return _front_end(full, case.account.take(1.0, UNEXPLAINED)) if full is not None else None


def front_end_stream(case: StreamCase) -> Claim | None:
    """The same, for tokens that are computed but not yet sent."""
    full = _full_front_end(case.summary)
    if full is None:
        return None
    return _front_end(full, case.account.take(1.0, UNEXPLAINED, stall_part(StallCause.STEPS_WENT_ON)))


def _full_front_end(summary: WindowSummary) -> EngineSurroundings | None:
    worst = worst_of(summary.engines, lambda engine: engine.front_end_cores)
    return worst if worst is not None and (worst.front_end_cores or 0.0) >= FRONT_END_FULL_CORES else None


def _front_end(engine: EngineSurroundings, taken: Taken) -> Claim:
    return Claim(
        Cause.FRONT_END_BUSY,
        taken,
        (
            Fact(
                f"the API process of {engine.name} kept {engine.front_end_cores or 0.0:.2f} cores busy, but "
                "can use only one",
                FactSource.HOST,
            ),
            Fact(f"{ms(taken.seconds)} of it is outside the engine's own timings", FactSource.DERIVED),
        ),
        "it takes as long with half as many requests, or with a second API process",
        Confidence.MEDIUM,
    )
