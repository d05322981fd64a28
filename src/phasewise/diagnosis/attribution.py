"""Matches timelines to engine steps: whose tokens filled a prefill, which step made a stream stall.

It adds spans to timelines and causes to stalls; what they mean for a user is judged in findings.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from phasewise.model.latency import Stall, stalls
from phasewise.model.step_log import CLOCK_SLACK_S, EngineMoments, StepLog
from phasewise.model.steps import FinishedRequest, TimedStep
from phasewise.model.timeline import Attempt, Part, Source, Span, Timeline

WAY_BACK_SLACK_S = 0.05
"""A chunk reaches its reader a little after the step that made it."""


def attribute(timeline: Timeline, log: StepLog) -> Timeline:
    """The timeline with what the step record adds to its serving attempt; unchanged if it adds nothing."""
    serving = timeline.serving_attempt
    if serving is None or serving.engine_request_id is None:
        return timeline
    found = log.finished(serving.engine_request_id)
    if found is None:
        return timeline
    seen, ended = found
    enriched = replace(serving, spans=_spans(timeline, serving, seen, ended, log))
    attempts = tuple(enriched if attempt is serving else attempt for attempt in timeline.attempts)
    counts = replace(
        timeline,
        prompt_tokens=_known(timeline.prompt_tokens, ended.prompt_tokens),
        cached_tokens=_known(timeline.cached_tokens, ended.cached_tokens),
        output_tokens=_known(timeline.output_tokens, ended.output_tokens),
    )
    return replace(counts, attempts=attempts)


def _known(reported: int | None, recorded: int) -> int:
    return recorded if reported is None else reported


def _spans(
    timeline: Timeline, attempt: Attempt, seen: EngineMoments, ended: FinishedRequest, log: StepLog
) -> tuple[Span, ...]:
    kept = tuple(span for span in attempt.spans if span.source is not Source.STEP_RECORD)
    reported = {span.part: span for span in kept}
    start_s = timeline.started_unix_s
    prefill = reported.pop(Part.PREFILL, None)
    spans = list(reported.values())
    if Part.ENGINE_QUEUE not in reported:
        spans.append(_recorded(Part.ENGINE_QUEUE, seen.queue_s, seen.queued_unix_s - start_s))
    if Part.DECODE not in reported:
        spans.append(_recorded(Part.DECODE, seen.decode_s, seen.first_token_unix_s - start_s))
    spans += _in_flight_span(seen, log, start_s)
    whole = prefill or _recorded(Part.PREFILL, seen.prefill_s, seen.scheduled_unix_s - start_s)
    spans += _prefill_spans(whole, seen, ended, log)
    return tuple(spans)


def _recorded(part: Part, duration_s: float, start_s: float | None) -> Span:
    return Span(part, Source.STEP_RECORD, duration_s, start_s)


def _in_flight_span(seen: EngineMoments, log: StepLog, start_s: float) -> list[Span]:
    """The engine takes in requests between steps: one that comes during a step waits for its end."""
    running = log.in_flight_at(seen.arrived_unix_s)
    if running is None:
        return []
    until_s = min(running.step.ended_unix_s, seen.queued_unix_s)
    waited_s = until_s - seen.arrived_unix_s
    if waited_s <= 0:
        return []
    return [_recorded(Part.STEP_IN_FLIGHT, waited_s, seen.arrived_unix_s - start_s)]


def _prefill_spans(whole: Span, seen: EngineMoments, ended: FinishedRequest, log: StepLog) -> list[Span]:
    """Split a prefill by whose tokens made its steps long.

    A step that also served running streams would have taken an ordinary decode step's time without any
    prompt; what it took beyond that is shared by the prompts in it. Unchanged where the record does not hold
    all of the prompt's steps.
    """
    # A prefill may be shorter than the clocks are apart: the slack is never a large part of it.
    slack_s = min(CLOCK_SLACK_S, seen.prefill_s / 4)
    steps = log.ending_between(seen.scheduled_unix_s + slack_s, seen.first_token_unix_s + slack_s)
    own_tokens = ended.prompt_tokens - ended.cached_tokens
    prompt_tokens = sum(timed.step.prompt_tokens or 0 for timed in steps)
    if own_tokens <= 0 or prompt_tokens < own_tokens:
        return [whole]
    streams_s = sum(log.usual_decode_step_s or 0.0 for timed in steps if timed.step.decode_tokens)
    prompts_s = max(whole.duration_s - streams_s, 0.0)
    own_s = prompts_s * own_tokens / prompt_tokens
    own = replace(whole, source=Source.STEP_RECORD, duration_s=own_s)
    others_s = whole.duration_s - own_s
    return [own, _recorded(Part.PREFILL_OTHERS, others_s, None)] if others_s > 0 else [own]


class StallCause(StrEnum):
    """What the engine did while a stream stood still."""

    PREFILL_CHUNK = "prefill_chunk"
    PREEMPTION = "preemption"
    SLOW_STEP = "slow_step"
    # Ordinary steps followed each other: the stream was passed over, or its chunks were held up on the way.
    STEPS_WENT_ON = "steps_went_on"
    ENGINE_IDLE = "engine_idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ExplainedStall:
    """A stall, the steps that ran during it, and which kind of step it was."""

    request_id: str
    stall: Stall
    cause: StallCause
    steps: tuple[TimedStep, ...] = ()


def explain_stalls(timeline: Timeline, log: StepLog | None) -> tuple[ExplainedStall, ...]:
    """Every stall of the stream with its cause; unknown where there is no step record of that time."""
    return tuple(_explain(timeline, stall, log) for stall in stalls(timeline))


def _explain(timeline: Timeline, stall: Stall, log: StepLog | None) -> ExplainedStall:
    if log is None or not log.steps:
        return ExplainedStall(timeline.request_id, stall, StallCause.UNKNOWN)
    begin_s = timeline.started_unix_s + stall.start_s
    end_s = begin_s + stall.duration_s
    if end_s < log.steps[0].step.ended_unix_s or begin_s > log.steps[-1].step.ended_unix_s:
        return ExplainedStall(timeline.request_id, stall, StallCause.UNKNOWN)
    ran = log.ending_between(begin_s + CLOCK_SLACK_S, end_s + CLOCK_SLACK_S)
    heavy = tuple(timed for timed in ran if _took_part(timed, begin_s, stall))
    return ExplainedStall(timeline.request_id, stall, _cause(ran, heavy), heavy)


def _took_part(timed: TimedStep, begin_s: float, stall: Stall) -> bool:
    """Whether the step is a good part of the stall, not one of the ordinary steps around it."""
    started_s = begin_s if timed.started_unix_s is None else timed.started_unix_s
    return timed.step.ended_unix_s - max(started_s, begin_s - WAY_BACK_SLACK_S) >= 0.2 * stall.duration_s


def _cause(ran: tuple[TimedStep, ...], heavy: tuple[TimedStep, ...]) -> StallCause:
    if not ran:
        return StallCause.ENGINE_IDLE
    if any(timed.step.preempted for timed in ran):
        return StallCause.PREEMPTION
    if not heavy:
        return StallCause.STEPS_WENT_ON
    if any(timed.step.prompt_tokens for timed in heavy):
        return StallCause.PREFILL_CHUNK
    if all(timed.step.prompt_tokens is None for timed in heavy):
        return StallCause.UNKNOWN
    return StallCause.SLOW_STEP
