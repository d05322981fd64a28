"""Simulated requests as timelines, as a gateway would have recorded them."""

from __future__ import annotations

from phasewise.core.timeline import (
    Attempt,
    AttemptKind,
    Outcome,
    Part,
    Placement,
    Source,
    Span,
    Timeline,
)
from phasewise.core.worker import WorkerRef
from phasewise.simulator.gateway import SimulatedAttempt, SimulatedRequest

EPOCH_S = 1_800_000_000.0
"""When second 0 of virtual time was."""


def timeline_of(served: SimulatedRequest) -> Timeline:
    """The timeline of a request that has ended."""
    origin_s = served.arrived_s
    attempts = tuple(_attempt(attempt, served, origin_s) for attempt in served.attempts)
    writing = [attempt for attempt in served.attempts if not attempt.is_prefill]
    times_s = [time_s - origin_s for attempt in writing for time_s in attempt.request.token_times_s]
    ended_s = (served.last_s or served.rejected_s or origin_s) - origin_s
    decision = served.decisions[0] if served.decisions else None
    return Timeline(
        request_id=served.request.request_id,
        started_unix_s=EPOCH_S + origin_s,
        model=served.request.model,
        outcome=Outcome.SUCCEEDED
        if served.answered
        else Outcome.FAILED
        if served.attempts
        else Outcome.REJECTED,
        ended_s=ended_s,
        attempts=attempts,
        spans=_waits(attempts, ended_s),
        content_times_s=tuple(times_s),
        prompt_tokens=served.prompt_tokens,
        cached_tokens=served.cached_tokens,
        output_tokens=sum(attempt.request.outputs for attempt in writing),
        finish_reason="length" if served.answered else None,
        tenant=served.request.tenant,
        reason=served.rejected,
        prompt_bytes=served.request.prompt_bytes,
        finished_s=None if served.last_s is None else served.last_s - origin_s,
        placement=None if decision is None else Placement(decision.policy, decision.reason, decision.options),
    )


def _attempt(attempt: SimulatedAttempt, served: SimulatedRequest, origin_s: float) -> Attempt:
    kind = AttemptKind.LOCAL
    if attempt.is_prefill:
        kind = AttemptKind.PREFILL_SIDE
    elif attempt.resumes:
        kind = AttemptKind.RESUMED
    elif attempt.fetches:
        kind = AttemptKind.DECODE_SIDE
    return Attempt(
        kind=kind,
        worker=WorkerRef(attempt.worker, "1"),
        started_s=attempt.began_s - origin_s,
        ended_s=attempt.ended_s - origin_s,
        outcome=Outcome.FAILED if attempt.failed else Outcome.SUCCEEDED,
        engine_request_id=attempt.request.name,
        spans=_spans(attempt, kind),
    )


def _spans(attempt: SimulatedAttempt, kind: AttemptKind) -> tuple[Span, ...]:
    """What an engine reports of its part; the queue time of a decode side is the fetch of its KV."""
    request = attempt.request
    if request.scheduled_s is None or request.first_token_s is None:
        return ()
    queue = Part.KV_TRANSFER if kind is AttemptKind.DECODE_SIDE else Part.ENGINE_QUEUE
    spans = [
        Span(queue, Source.ENGINE_REPORT, request.scheduled_s - request.queued_s),
        Span(Part.PREFILL, Source.ENGINE_REPORT, request.first_token_s - request.scheduled_s),
    ]
    if kind is not AttemptKind.PREFILL_SIDE and not attempt.failed:
        spans.append(Span(Part.DECODE, Source.ENGINE_REPORT, attempt.ended_s - request.first_token_s))
    return tuple(spans)


def _waits(attempts: tuple[Attempt, ...], ended_s: float) -> tuple[Span, ...]:
    """What the request waited in the gateway until an engine that answered it got it."""
    serving = [attempt for attempt in attempts if attempt.kind is not AttemptKind.RESUMED]
    if not serving:
        return (Span(Part.GATEWAY_WAIT, Source.GATEWAY_CLOCK, ended_s, 0.0),)
    sides = 2 if serving[-1].kind is AttemptKind.DECODE_SIDE and len(serving) > 1 else 1
    first, begins = serving[0].started_s, serving[-sides].started_s
    spans = [Span(Part.GATEWAY_WAIT, Source.GATEWAY_CLOCK, begins, 0.0)]
    if begins > first:
        spans.append(
            Span(Part.EARLIER_ATTEMPTS, Source.GATEWAY_CLOCK, begins - first, first, within=Part.GATEWAY_WAIT)
        )
    return tuple(spans)
