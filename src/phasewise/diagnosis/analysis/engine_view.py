"""Timelines rebuilt from an engine's step record alone: no client, no network.

They are used with a step recorder and without a gateway. The record names a request when it ends; those that
are open when the window closes are put together from how many the engine had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isnan

from phasewise.core.steps import EngineMoments, FinishedRequest, StepLog
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Source, Span, Timeline
from phasewise.core.worker import WorkerRef
from phasewise.diagnosis.analysis.open_requests import InEngine, arrivals
from phasewise.diagnosis.analysis.step_reading import StepReading


def timelines_from_steps(
    log: StepLog, worker: str, until_unix_s: float | None = None
) -> tuple[Timeline, ...]:
    """One timeline per request that ended within the log, including those without a token, and one per
    request that is open at `until_unix_s`, if that is given.
    """
    timelines = []
    reading = StepReading(log)
    for timed in log.steps:
        for ended in timed.step.finished:
            found = log.finished(ended.request_id)
            if found is not None:
                timelines.append(_timeline(ended.request_id, *found, reading, worker))
            elif not isnan(ended.e2e_s):
                timelines.append(_left_early(timed.step.ended_unix_s, ended, worker))
    if until_unix_s is not None:
        timelines += _open_requests(log, worker, until_unix_s)
    return tuple(timelines)


def _open_requests(log: StepLog, worker: str, until_unix_s: float) -> Iterator[Timeline]:
    """Those that wait came last; those that run had the latest first tokens that no ended request had."""
    steps = [timed.step for timed in log.steps if timed.step.ended_unix_s <= until_unix_s]
    if not steps or not steps[-1].leaves_work:
        return
    ended = accumulate(len(step.finished) for step in steps)
    came_s = arrivals(
        InEngine(step.ended_unix_s, step.waiting, step.running, count)
        for step, count in zip(steps, ended, strict=True)
    )
    waiting = min(steps[-1].waiting, len(came_s))
    for number in range(waiting):
        yield _open(f"waiting-{number}", came_s[number - waiting], (), worker, until_unix_s)
    firsts_s = [step.ended_unix_s for step in steps for _ in range(step.first_tokens)]
    theirs = _without_ended(firsts_s, log)[-steps[-1].running :] if steps[-1].running else []
    for index in theirs:
        since_last = len(firsts_s) - index
        at_s = came_s[-waiting - since_last] if waiting + since_last <= len(came_s) else came_s[0]
        tokens_s = [step.ended_unix_s for step in steps if step.ended_unix_s >= firsts_s[index]]
        yield _open(f"running-{index}", min(at_s, firsts_s[index]), tokens_s, worker, until_unix_s)


def _without_ended(firsts_s: Sequence[float], log: StepLog) -> list[int]:
    """Which of these first tokens are of requests that have not ended: each other one is an ended one's."""
    left = list(range(len(firsts_s)))
    for timed in log.steps:
        for ended in timed.step.finished:
            found = log.finished(ended.request_id)
            if found is None or not left:
                continue
            at_s = found[0].first_token_unix_s
            place = bisect_left(left, at_s, key=lambda index: firsts_s[index])
            near = min(
                range(max(0, place - 1), min(len(left), place + 1)),
                key=lambda spot: abs(firsts_s[left[spot]] - at_s),
            )
            if abs(firsts_s[left[near]] - at_s) <= SAME_STEP_S:
                del left[near]
    return left


SAME_STEP_S = 0.005
"""The engine's own clock and the record's differ by less for one step's end."""


def _open(
    name: str,
    came_unix_s: float,
    tokens_unix_s: Sequence[float],
    worker: str,
    until_unix_s: float,
) -> Timeline:
    age_s = until_unix_s - came_unix_s
    attempt = Attempt(AttemptKind.LOCAL, WorkerRef(worker, ""), 0.0, age_s, Outcome.UNFINISHED)
    return Timeline(
        request_id=f"{worker}-{name}",
        started_unix_s=came_unix_s,
        model="",
        outcome=Outcome.UNFINISHED,
        ended_s=age_s,
        attempts=(attempt,),
        content_times_s=tuple(at_s - came_unix_s for at_s in tokens_unix_s),
    )


def _left_early(ended_unix_s: float, ended: FinishedRequest, worker: str) -> Timeline:
    """A request that ended without tokens, or without recorded token times."""
    attempt = Attempt(
        AttemptKind.LOCAL,
        WorkerRef(worker, ""),
        0.0,
        ended.e2e_s,
        Outcome.CANCELLED,
        engine_request_id=ended.request_id,
    )
    return Timeline(
        request_id=ended.request_id,
        started_unix_s=ended_unix_s - ended.e2e_s,
        model="",
        outcome=Outcome.CANCELLED,
        ended_s=ended.e2e_s,
        attempts=(attempt,),
        prompt_tokens=ended.prompt_tokens,
        finish_reason=ended.reason,
    )


def _timeline(
    request_id: str,
    seen: EngineMoments,
    ended: FinishedRequest,
    reading: StepReading,
    worker: str,
) -> Timeline:
    origin_s = seen.arrived_unix_s
    end_s = seen.last_token_unix_s - origin_s
    outcome = Outcome.CANCELLED if ended.reason == "abort" else Outcome.SUCCEEDED
    spans = (
        Span(Part.ENGINE_QUEUE, Source.STEP_RECORD, seen.queue_s, seen.queued_unix_s - origin_s),
        Span(Part.PREFILL, Source.STEP_RECORD, seen.prefill_s, seen.scheduled_unix_s - origin_s),
        Span(Part.DECODE, Source.STEP_RECORD, seen.decode_s, seen.first_token_unix_s - origin_s),
    )
    attempt = Attempt(
        AttemptKind.LOCAL,
        WorkerRef(worker, ""),
        0.0,
        end_s,
        outcome,
        engine_request_id=request_id,
        spans=spans,
    )
    return Timeline(
        request_id=request_id,
        started_unix_s=origin_s,
        model="",
        outcome=outcome,
        ended_s=end_s,
        attempts=(attempt,),
        content_times_s=_token_times_s(seen, ended, reading),
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        output_tokens=ended.output_tokens,
        finish_reason=ended.reason,
    )


def _token_times_s(seen: EngineMoments, ended: FinishedRequest, reading: StepReading) -> tuple[float, ...]:
    """A running request gets tokens at the end of each step."""
    if ended.output_tokens < 1:
        return ()
    origin_s = seen.arrived_unix_s
    later = (timed.step.ended_unix_s - origin_s for timed in reading.decode_steps(seen))
    return (seen.first_token_unix_s - origin_s, *later)
