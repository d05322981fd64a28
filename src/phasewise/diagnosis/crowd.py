"""How full an engine was and what its steps were like, from its step record or from readings of its gauges.

What follows from it is left to the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from phasewise.diagnosis.step_reading import recomputed_tokens
from phasewise.diagnosis.surroundings import Crowd, LoadReading, StepShape
from phasewise.model.step_log import StepLog
from phasewise.model.steps import EngineStep, TimedStep

KV_FULL_USAGE = 0.95
"""Where the cache's size is not known: so full that an ordinary request of a busy engine finds no room."""
CUT_STEPS = 3
"""So many steps cut at the same number of tokens are no chance."""
LONE_STREAMS = 2

Window = tuple[float, float]
"""From when until when, on the wall clock of the step record."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """How full the engine was, and for how long it stayed so."""

    at_s: float
    lasted_s: float
    running: float
    waiting: float
    kv_usage: float
    preempted: bool = False


def crowd_of(
    steps: Sequence[EngineStep],
    window: Window,
    typical_prompt_tokens: float | None,
    kv_tokens: int | None,
) -> Crowd | None:
    """How full the engine was, from the steps of one rank; None if none ended in the window.

    Requests that ended in a step ran in it, so a step carried what it left running and those. Between a step
    that left no work and the next one, the engine was empty.
    """
    within = [timed for timed in StepLog(steps).steps if window[0] < timed.step.ended_unix_s <= window[1]]
    moments: list[_Moment] = []
    until_s, usage = window[0], 0.0
    for timed in within:
        step = timed.step
        began_s = max(until_s, _began_unix_s(timed))
        moments.append(_Moment(until_s, began_s - until_s, 0.0, 0.0, usage))
        moments.append(_during(step, began_s))
        until_s, usage = step.ended_unix_s, step.kv_usage
    if within and not within[-1].step.leaves_work:
        moments.append(_Moment(until_s, window[1] - until_s, 0.0, 0.0, usage))
    return _crowd([it for it in moments if it.lasted_s > 0], _room_for(typical_prompt_tokens, kv_tokens))


def _began_unix_s(timed: TimedStep) -> float:
    return timed.step.ended_unix_s if timed.started_unix_s is None else timed.started_unix_s


def _during(step: EngineStep, began_s: float) -> _Moment:
    return _Moment(
        at_s=began_s,
        lasted_s=step.ended_unix_s - began_s,
        running=step.running + len(step.finished),
        waiting=step.waiting,
        kv_usage=step.kv_usage,
        preempted=step.preempted > 0,
    )


def crowd_of_gauges(
    samples: Sequence[LoadReading],
    typical_prompt_tokens: float | None = None,
    kv_tokens: int | None = None,
) -> Crowd | None:
    """How full the engine was, from readings of its gauges, each of which holds until the next."""
    ordered = sorted(samples, key=lambda it: it.at_unix_s)
    moments = [
        _Moment(here.at_unix_s, there.at_unix_s - here.at_unix_s, here.running, here.waiting, here.kv_usage)
        for here, there in pairwise(ordered)
    ]
    if ordered:
        last = ordered[-1]
        # The last reading counts as long as the others did, or for itself.
        usual_s = median(it.lasted_s for it in moments) if moments else 1.0
        moments.append(_Moment(last.at_unix_s, usual_s, last.running, last.waiting, last.kv_usage))
    return _crowd([it for it in moments if it.lasted_s > 0], _room_for(typical_prompt_tokens, kv_tokens))


def _room_for(typical_prompt_tokens: float | None, kv_tokens: int | None) -> Callable[[_Moment], bool]:
    if typical_prompt_tokens is None or not kv_tokens:
        return lambda moment: moment.kv_usage < KV_FULL_USAGE and not moment.preempted
    # An engine lets a request in when what it has to compute of its prompt fits; its output comes later.
    full_usage = max(0.0, 1.0 - typical_prompt_tokens / kv_tokens)
    return lambda moment: moment.kv_usage <= full_usage and not moment.preempted


def _crowd(moments: Sequence[_Moment], has_room: Callable[[_Moment], bool]) -> Crowd | None:
    if not moments:
        return None
    running_max = max(it.running for it in moments)
    waited = [it for it in moments if it.waiting > 0]
    full = [it for it in waited if not has_room(it)]
    capped = [it for it in waited if has_room(it) and it.running >= running_max]
    waited_s = _lasted_s(waited)
    return Crowd(
        running_mean=_mean(moments, lambda it: it.running),
        running_max=round(running_max),
        waiting_mean=_mean(moments, lambda it: it.waiting),
        waiting_max=round(max(it.waiting for it in moments)),
        kv_usage_mean=_mean(moments, lambda it: it.kv_usage),
        kv_usage_max=max(it.kv_usage for it in moments),
        waited_share=waited_s / _lasted_s(moments),
        kv_full_share=_lasted_s(full) / waited_s if waited_s > 0 else 0.0,
        capped_share=_lasted_s(capped) / waited_s if waited_s > 0 else 0.0,
        growth=_growth(moments),
    )


def _lasted_s(moments: Sequence[_Moment]) -> float:
    return sum(it.lasted_s for it in moments)


def _mean(moments: Sequence[_Moment], value: Callable[[_Moment], float]) -> float:
    """The mean over time."""
    return sum(value(it) * it.lasted_s for it in moments) / _lasted_s(moments)


def _growth(moments: Sequence[_Moment]) -> float:
    """How many more requests were in the engine in the last third of the time than in the first."""
    begin_s = moments[0].at_s
    third_s = (moments[-1].at_s + moments[-1].lasted_s - begin_s) / 3
    first = [it for it in moments if it.at_s < begin_s + third_s]
    last = [it for it in moments if it.at_s >= begin_s + 2 * third_s]
    if not first or not last:
        return 0.0
    return _mean(last, lambda it: it.running + it.waiting) - _mean(first, lambda it: it.running + it.waiting)


def step_shape_of(log: StepLog, window: Window) -> StepShape | None:
    """What the steps of one rank were like in the window; None if none ended in it."""
    steps = log.ending_between(*window)
    if not steps:
        return None
    streaming = [timed for timed in steps if timed.step.decode_tokens and timed.step.prompt_tokens == 0]
    chunks = [timed.step.prompt_tokens for timed in steps if timed.step.prompt_tokens]
    return StepShape(
        steps=len(steps),
        busy_share=_busy_s(steps, window) / (window[1] - window[0]) if window[1] > window[0] else 0.0,
        chunk_p50_tokens=float(median(chunks)) if chunks else None,
        budget_tokens=_budget_tokens(steps),
        decode_step_p50_s=_median_s(streaming),
        lone_step_s=_median_s([it for it in streaming if _streams(it.step) <= LONE_STREAMS]),
        tokens_per_stream_step=_tokens_per_stream(steps),
    )


def _busy_s(steps: Sequence[TimedStep], window: Window) -> float:
    return sum(
        timed.step.ended_unix_s - max(timed.started_unix_s, window[0])
        for timed in steps
        if timed.started_unix_s is not None
    )


def _streams(step: EngineStep) -> int:
    return step.decode_requests or step.decode_tokens or 0


def _median_s(steps: Sequence[TimedStep]) -> float | None:
    durations = [timed.duration_s for timed in steps if timed.duration_s is not None]
    return median(durations) if durations else None


def _budget_tokens(steps: Sequence[TimedStep]) -> int | None:
    """The engine cuts prompts at its budget: many steps then carry exactly as many tokens, and none more."""
    totals = Counter(
        (step.prompt_tokens or 0) + (step.decode_tokens or 0)
        for step, after in _with_next(steps)
        if step.prompt_tokens and _prompts_left(step, after)
    )
    most = max(
        ((timed.step.prompt_tokens or 0) + (timed.step.decode_tokens or 0) for timed in steps), default=0
    )
    return most if totals[most] >= CUT_STEPS else None


def _with_next(steps: Sequence[TimedStep]) -> list[tuple[EngineStep, EngineStep | None]]:
    following = [*(timed.step for timed in steps[1:]), None]
    return list(zip((timed.step for timed in steps), following, strict=True))


def _prompts_left(step: EngineStep, after: EngineStep | None) -> bool:
    """Whether a prompt was cut: not all of the step's were done, and the next one goes on with them."""
    if after is None or not after.prompt_tokens:
        return False
    return step.prompt_requests is None or step.prompt_requests > step.first_tokens


def _tokens_per_stream(steps: Sequence[TimedStep]) -> float | None:
    counted = [
        timed.step
        for timed in steps
        if timed.step.decode_tokens and timed.step.decode_requests and not recomputed_tokens(timed.step)
    ]
    streams = sum(step.decode_requests or 0 for step in counted)
    return sum(step.decode_tokens or 0 for step in counted) / streams if streams else None
