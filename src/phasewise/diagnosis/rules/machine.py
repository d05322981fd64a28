"""The machine under the engine, in either phase: first steps, a core that is shared, a busy front end."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.diagnosis.cause import Cause, Confidence
from phasewise.diagnosis.finding import Fact, FactSource
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.rules.account import Taken
from phasewise.diagnosis.rules.case import (
    RESIDUAL,
    STEP_PARTS,
    Claim,
    StartCase,
    StreamCase,
    TokenPart,
    stall_part,
)
from phasewise.diagnosis.rules.engines import busy_share, mean_of, over_waiting, worst_of
from phasewise.diagnosis.rules.words import ms, percent
from phasewise.diagnosis.stall_causes import StallCause
from phasewise.diagnosis.surroundings import EngineSurroundings
from phasewise.model.timeline import Part

STARVED_SHARE = 0.15
"""Threads that wait for a core less than this much of their time are as good as alone on it."""
FRONT_END_FULL_CORES = 0.8
"""The front end's Python runs on one core at a time: near one core it has no time left."""
SATURATED_SHARE = 0.9
"""An engine that computes this much of the time cannot take more."""
YOUNG_S = 300.0
"""An engine that has lived longer has been through its usual steps: what looks like a first one may only be
the first that was recorded."""
AT_EASE_SHARE = 0.75
"""Below this an engine's queue stays short."""


def cold_start(case: StartCase) -> Claim | None:
    """First steps of their kind took several times what later ones did."""
    cold_s = case.start.cold_s or 0.0
    taken = case.account.take_seconds(cold_s, Part.PREFILL, Part.PREFILL_OTHERS, Part.STEP_IN_FLIGHT)
    # Who came during such a step may be taken in only after it: then no clock of the engine saw the wait.
    for elsewhere in (Part.ENGINE_QUEUE, RESIDUAL):
        taken += case.account.take_seconds(cold_s - taken.seconds, elsewhere)
    return _cold(case.picture, taken, "start as late") if taken.seconds > 0 else None


def cold_stream(case: StreamCase) -> Claim | None:
    """The same, while streams were running."""
    taken = case.account.take(1.0, TokenPart.COLD, stall_part(StallCause.COLD_STEP))
    return _cold(case.picture, taken, "stream as slowly") if taken.is_something else None


def _cold(picture: Picture, taken: Taken, as_before: str) -> Claim:
    facts = [
        Fact(
            f"first steps of their kind took {ms(taken.seconds)} more, per request or token, than later ones "
            "of the same size",
            FactSource.STEP_RECORD,
        )
    ]
    ages = [engine.age_s for engine in picture.engines if engine.age_s is not None]
    if ages:
        facts.append(
            Fact(f"the youngest engine was {min(ages):.0f} s old when the window began", FactSource.COUNTERS)
        )
    return Claim(
        Cause.COLD_START,
        taken,
        tuple(facts),
        f"the same requests, sent again to the engine now that it is warm, {as_before}",
        Confidence.HIGH if _just_started(picture, ages) else Confidence.LOW,
    )


def _just_started(picture: Picture, ages: Sequence[float]) -> bool:
    """Whether an engine is at the beginning of its life, by its age or by the numbers of its cold steps."""
    at_its_start = picture.start is not None and picture.start.cold_from_its_start
    return at_its_start or min(ages, default=YOUNG_S) < YOUNG_S


def starved_start(case: StartCase) -> Claim | None:
    """The engine's threads wait for a core that others use: everything it does takes longer by that."""
    share = _starved_share(case.picture)
    if not share:
        return None
    taken = case.account.take(share, Part.PREFILL, Part.PREFILL_OTHERS, Part.STEP_IN_FLIGHT)
    taken += case.account.take(_queue_share(case.picture, share), Part.ENGINE_QUEUE)
    return _starved(case.picture, taken)


def starved_stream(case: StreamCase) -> Claim | None:
    """The same, step by step; of a pause too it claims no more than its share, as threads that share a core
    get it every few milliseconds."""
    share = _starved_share(case.picture)
    if not share:
        return None
    engine_made = (*STEP_PARTS, TokenPart.PROMPTS, TokenPart.PREEMPTED, TokenPart.PAUSED)
    taken = case.account.take(share, *engine_made, *map(stall_part, _STALLS_OF_ENGINE))
    return _starved(case.picture, taken)


_STALLS_OF_ENGINE = (
    StallCause.PREFILL_CHUNK,
    StallCause.PREEMPTION,
    StallCause.SLOW_STEP,
    StallCause.ENGINE_IDLE,
    StallCause.PAUSE,
    # Without a step record: what the engine was at is not known, but it was short of a core all along.
    StallCause.UNKNOWN,
)


def _starved_share(picture: Picture) -> float:
    """How much of its time the engines' work waited for a core; 0 where no engine was starved."""
    return mean_of(picture.engines, _noticeable_wait) or 0.0


def _noticeable_wait(engine: EngineSurroundings) -> float | None:
    share = engine.cpu_wait_share
    return share if share is None or share >= STARVED_SHARE else 0.0


def _queue_share(picture: Picture, share: float) -> float:
    """How much of the queue is the shared core's: all of it where the engine is full only for that reason.

    Who waits at a cap or for KV memory would wait on a core of its own too, only less long.
    """
    busy = mean_of(picture.engines, busy_share)
    if busy is None or busy < SATURATED_SHARE or busy * (1.0 - share) > AT_EASE_SHARE:
        return share
    held_back = over_waiting(picture, lambda crowd: crowd.capped_share + crowd.kv_full_share) or 0.0
    return share + (1.0 - share) * (1.0 - min(1.0, held_back))


def _starved(picture: Picture, taken: Taken) -> Claim:
    worst = worst_of(picture.engines, lambda engine: engine.cpu_wait_share)
    facts = []
    if worst is not None and worst.cpu_wait_share is not None:
        facts.append(
            Fact(
                f"{percent(worst.cpu_wait_share)} of the time that {worst.name} wanted to compute, "
                f"others had its cores{f' (by {worst.cpu_source})' if worst.cpu_source else ''}",
                FactSource.HOST,
            )
        )
        if worst.host_busy_share is not None:
            facts.append(Fact(f"its host was {percent(worst.host_busy_share)} busy", FactSource.HOST))
    facts.append(Fact(f"{ms(taken.seconds)} of what the engine took goes to that", FactSource.DERIVED))
    return Claim(
        Cause.ENGINE_STARVED,
        taken,
        tuple(facts),
        "steps of the same size take as long once nothing else runs on the engine's cores",
    )


def front_end_start(case: StartCase) -> Claim | None:
    """The engine's API process has no CPU time left: requests and replies wait in it."""
    full = _full_front_end(case.picture)
    return _front_end(full, case.account.take(1.0, RESIDUAL)) if full is not None else None


def front_end_stream(case: StreamCase) -> Claim | None:
    """The same, for tokens that are computed and not yet sent."""
    full = _full_front_end(case.picture)
    if full is None:
        return None
    return _front_end(full, case.account.take(1.0, RESIDUAL, stall_part(StallCause.STEPS_WENT_ON)))


def _full_front_end(picture: Picture) -> EngineSurroundings | None:
    worst = worst_of(picture.engines, lambda engine: engine.front_end_cores)
    return worst if worst is not None and (worst.front_end_cores or 0.0) >= FRONT_END_FULL_CORES else None


def _front_end(engine: EngineSurroundings, taken: Taken) -> Claim:
    return Claim(
        Cause.FRONT_END_BUSY,
        taken,
        (
            Fact(
                f"the API process of {engine.name} kept {engine.front_end_cores or 0.0:.2f} cores busy, and "
                "runs on one at a time",
                FactSource.HOST,
            ),
            Fact(f"no clock of the engine saw {ms(taken.seconds)} of it", FactSource.DERIVED),
        ),
        "the time stays with half as many requests, or with a second API process (--api-server-count 2)",
        Confidence.MEDIUM,
    )
