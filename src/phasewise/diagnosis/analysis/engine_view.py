"""Timelines rebuilt from an engine's step record alone: no client, no network.

They are used with a step recorder and without a gateway. Requests that have not ended are not in the record.
"""

from __future__ import annotations

from math import isnan

from phasewise.core.step_log import EngineMoments, StepLog
from phasewise.core.steps import FinishedRequest
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Source, Span, Timeline
from phasewise.core.worker import WorkerRef
from phasewise.diagnosis.analysis.step_reading import StepReading


def timelines_from_steps(log: StepLog, worker: str, model: str) -> tuple[Timeline, ...]:
    """One timeline per request that ended within the log, including those without a token."""
    timelines = []
    reading = StepReading(log)
    for timed in log.steps:
        for ended in timed.step.finished:
            found = log.finished(ended.request_id)
            if found is not None:
                timelines.append(_timeline(ended.request_id, *found, reading, worker, model))
            elif not isnan(ended.e2e_s):
                timelines.append(_left_early(timed.step.ended_unix_s, ended, worker, model))
    return tuple(timelines)


def _left_early(ended_unix_s: float, ended: FinishedRequest, worker: str, model: str) -> Timeline:
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
        model=model,
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
    model: str,
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
        model=model,
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
