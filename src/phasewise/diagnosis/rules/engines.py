"""What several engines' surroundings say together: means that weigh an engine by what it served."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phasewise.diagnosis.finding import FactSource
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.surroundings import Crowd, EngineSurroundings
from phasewise.model.timeline import Part

Reading = Callable[[EngineSurroundings], float | None]


def mean_of(engines: Sequence[EngineSurroundings], reading: Reading) -> float | None:
    """The mean over the engines that know it, weighed by their requests."""
    known = [(engine.requests, value) for engine in engines if (value := reading(engine)) is not None]
    if not known:
        return None
    requests = sum(weight for weight, _ in known)
    if not requests:
        return sum(value for _, value in known) / len(known)
    return sum(weight * value for weight, value in known) / requests


def worst_of(engines: Sequence[EngineSurroundings], reading: Reading) -> EngineSurroundings | None:
    """The engine with the highest reading among those that served any request."""
    known = [engine for engine in engines if engine.requests and reading(engine) is not None]
    return max(known, key=lambda engine: reading(engine) or 0.0, default=None)


def crowds(picture: Picture) -> tuple[Crowd, ...]:
    """The crowds of the engines that told them."""
    return tuple(engine.crowd for engine in picture.engines if engine.crowd is not None)


def crowd_source(picture: Picture) -> FactSource:
    """Who tells how full the engines were: their steps, or readings of their gauges."""
    by_steps = any(engine.steps is not None for engine in picture.engines)
    return FactSource.STEP_RECORD if by_steps else FactSource.COUNTERS


def over_waiting(picture: Picture, reading: Callable[[Crowd], float]) -> float | None:
    """A share of the time in which requests waited, weighed by how many waited; None where nobody can say."""
    known = crowds(picture)
    waiting = sum(crowd.waiting_mean for crowd in known)
    return sum(crowd.waiting_mean * reading(crowd) for crowd in known) / waiting if waiting > 0 else None


def fullest(picture: Picture) -> Crowd | None:
    """The crowd in which most requests waited."""
    return max(crowds(picture), key=lambda crowd: (crowd.waiting_mean, crowd.running_mean), default=None)


def busy_share(engine: EngineSurroundings) -> float | None:
    """The part of the window in which a step ran."""
    return engine.steps.busy_share if engine.steps is not None else None


def running_mean(picture: Picture) -> float | None:
    """How many requests shared a step, on average."""
    by_crowd = mean_of(
        picture.engines, lambda engine: engine.crowd.running_mean if engine.crowd is not None else None
    )
    return picture.workload.running_mean if by_crowd is None else by_crowd


def prompt_work_share(picture: Picture) -> float | None:
    """The part of the engines' busy time that went into prompts; None without a record of steps.

    Every rank computes prompts of its own. Engines without a record stay out, with what they served.
    """
    recorded = [engine for engine in picture.engines if engine.steps is not None]
    busy_s = sum(_all_ranks_busy_share(engine) * picture.window_s for engine in recorded)
    if picture.start is None or busy_s <= 0:
        return None
    answered = picture.start.requests - picture.start.unanswered
    served = sum(engine.requests for engine in picture.engines)
    theirs = sum(engine.requests for engine in recorded) / served if served else 1.0
    return min(1.0, picture.start.seconds(Part.PREFILL) * answered * theirs / busy_s)


def _all_ranks_busy_share(engine: EngineSurroundings) -> float:
    """More than one where several ranks computed at the same time."""
    if engine.ranks_busy_share is not None:
        return engine.ranks_busy_share
    return busy_share(engine) or 0.0


def context_tokens(picture: Picture) -> int:
    """How long the context of a typical stream is, half-way through."""
    prompt, output = picture.workload.prompt_p50_tokens, picture.workload.output_p50_tokens
    return round((prompt or 0.0) + (output or 0.0) / 2)
