"""Why a stream stalled: which step, which prompt, or which other cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from phasewise.core.latency import Stall, stalls
from phasewise.core.steps import CLOCK_SLACK_S, StepLog, TimedStep
from phasewise.core.timeline import Outcome, Timeline
from phasewise.diagnosis.analysis.step_reading import StepReading

WAY_BACK_SLACK_S = 0.05
"""The delay between a step and the arrival of its chunk."""
GOOD_PART = 0.2
"""A step belongs to a stall if it makes up at least this share of it."""
CLIENT_PART = 0.5
"""A stall is caused by the client if the gateway waited for it at least this share of the stall."""


class StallCause(StrEnum):
    """What the engine or the client did during a stall."""

    PREFILL_CHUNK = "prefill_chunk"
    # The stream was preempted, or others that were preempted were computed again.
    PREEMPTION = "preemption"
    SLOW_STEP = "slow_step"
    # A step took many times what its work takes: the engine had work and did none.
    PAUSE = "pause"
    # The same, but it was the first of its kind: compiling, loading, allocating.
    COLD_STEP = "cold_step"
    # Steps went on as usual: the stream was not scheduled, or its chunks were delayed in transit.
    STEPS_WENT_ON = "steps_went_on"
    ENGINE_IDLE = "engine_idle"
    # The gateway waited for its client to read.
    CLIENT = "client"
    # The stream's worker failed during it, and another one went on or none did.
    WORKER_FAILED = "worker_failed"
    # The gateway had no worker for it, for most of the stall.
    NO_WORKER = "no_worker"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GuiltyPrompt:
    """A request whose prompt was computed during a stall of others, by its id in the engine."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ExplainedStall:
    """A stall, its cause, the steps that ran during it, and the requests whose prompts they computed.

    Each engine numbers its own steps; `engine` is its name.
    If stalls are only counted, it represents `count` of them with their mean length.
    """

    request_id: str
    stall: Stall
    cause: StallCause
    steps: tuple[TimedStep, ...] = ()
    guilty: tuple[GuiltyPrompt, ...] = ()
    count: int = 1
    engine: str | None = None


def explain_stalls(timeline: Timeline, reading: StepReading | None) -> tuple[ExplainedStall, ...]:
    """Every stall of the stream with its cause; unknown without a step record of that time."""
    serving = timeline.serving_attempt
    engine = None if serving is None else serving.worker.name
    found = tuple(replace(_explain(timeline, stall, reading), engine=engine) for stall in stalls(timeline))
    return _with_client(found, timeline.client_blocked_s or 0.0)


def _explain(timeline: Timeline, stall: Stall, reading: StepReading | None) -> ExplainedStall:
    if (lost := _lost_worker(timeline, stall)) is not None:
        return ExplainedStall(timeline.request_id, stall, lost)
    if reading is None or not reading.log.steps:
        return ExplainedStall(timeline.request_id, stall, StallCause.UNKNOWN)
    log = reading.log
    begin_s = timeline.started_unix_s + stall.start_s
    end_s = begin_s + stall.duration_s
    if end_s < log.steps[0].step.ended_unix_s or begin_s > log.steps[-1].step.ended_unix_s:
        hung = _hung_since_last_step(timeline, stall, log)
        cause = StallCause.ENGINE_IDLE if hung else StallCause.UNKNOWN
        return ExplainedStall(timeline.request_id, stall, cause)
    ran = log.ending_between(begin_s + CLOCK_SLACK_S, end_s + CLOCK_SLACK_S)
    heavy = tuple(timed for timed in ran if _took_part(timed, begin_s, stall))
    cause = _cause(ran, heavy, reading, may_be_preempted=_may_be_preempted(timeline, log))
    guilty = _guilty(heavy, reading) if cause is StallCause.PREFILL_CHUNK else ()
    return ExplainedStall(timeline.request_id, stall, cause, heavy, guilty)


def _lost_worker(timeline: Timeline, stall: Stall) -> StallCause | None:
    """Whether the stream lost its worker in the stall, by the gateway's clock; None if it did not."""
    begin_s, end_s = stall.start_s, stall.start_s + stall.duration_s
    waits = [
        min(until_s, end_s) - since_s
        for since_s, until_s in waits_for_workers(timeline)
        if begin_s < since_s <= end_s
    ]
    if not waits:
        return None
    return StallCause.NO_WORKER if 2 * sum(waits) > stall.duration_s else StallCause.WORKER_FAILED


def waits_for_workers(timeline: Timeline) -> list[tuple[float, float]]:
    """From each failure of a worker until another one got the request, or its end, on the gateway's clock."""
    starts = [*(attempt.started_s for attempt in timeline.attempts[1:]), timeline.ended_s]
    return [
        (attempt.ended_s, next_s)
        for attempt, next_s in zip(timeline.attempts, starts, strict=False)
        if attempt.outcome in {Outcome.FAILED, Outcome.TIMED_OUT}
    ]


def _hung_since_last_step(timeline: Timeline, stall: Stall, log: StepLog) -> bool:
    """Whether the engine has run no step since the stream's last token.

    A record that was read too early would lack steps that gave the stream tokens.
    """
    last = log.steps[-1].step
    since_s = timeline.started_unix_s + stall.start_s - last.ended_unix_s
    with_its_last_token = 0 <= since_s <= max(WAY_BACK_SLACK_S, stall.median_gap_s)
    return last.leaves_work and with_its_last_token and stall.start_s >= timeline.content_times_s[-1]


def _took_part(timed: TimedStep, begin_s: float, stall: Stall) -> bool:
    """Whether the step makes up a large part of the stall."""
    started_s = begin_s if timed.started_unix_s is None else timed.started_unix_s
    took_s = timed.step.ended_unix_s - max(started_s, begin_s - WAY_BACK_SLACK_S)
    return took_s >= GOOD_PART * stall.duration_s


def _may_be_preempted(timeline: Timeline, log: StepLog) -> bool:
    """Whether the stream was or may have been preempted: the engine reports it when a request ends."""
    serving = timeline.serving_attempt
    found = None if serving is None else log.finished(serving.engine_request_id or "")
    return found is None or found[1].preemptions > 0


def _cause(
    ran: tuple[TimedStep, ...],
    heavy: tuple[TimedStep, ...],
    reading: StepReading,
    *,
    may_be_preempted: bool,
) -> StallCause:
    if not ran:
        return StallCause.ENGINE_IDLE
    if may_be_preempted and any(timed.step.preempted for timed in ran):
        return StallCause.PREEMPTION
    if not heavy:
        return StallCause.STEPS_WENT_ON
    return _cause_in_steps(heavy, reading)


def _cause_in_steps(heavy: tuple[TimedStep, ...], reading: StepReading) -> StallCause:
    if all(timed.step.prompt_tokens is None for timed in heavy):
        return StallCause.UNKNOWN
    splits = [reading.split(timed, timed.step.ended_unix_s) for timed in heavy]
    seconds = {
        StallCause.PREFILL_CHUNK: sum(split.prompts_s for split in splits),
        StallCause.PREEMPTION: sum(split.recomputed_s for split in splits),
        StallCause.PAUSE: sum(split.paused_s for split in splits),
        StallCause.COLD_STEP: sum(split.cold_s for split in splits),
    }
    most = max(seconds, key=lambda cause: seconds[cause])
    if seconds[most] > 0:
        return most
    if any(timed.step.prompt_tokens for timed in heavy):
        return StallCause.PREFILL_CHUNK
    # A step after an idle engine began when a request arrived, not with the stall.
    after_idleness = all(timed.started_unix_s is None for timed in heavy if timed is not reading.log.steps[0])
    return StallCause.ENGINE_IDLE if after_idleness else StallCause.SLOW_STEP


def _guilty(heavy: tuple[TimedStep, ...], reading: StepReading) -> tuple[GuiltyPrompt, ...]:
    found = {
        record.ended.request_id: record.ended
        for timed in heavy
        for record in reading.prefilled_in(timed.step)
    }
    prompts = (GuiltyPrompt(name, ended.prompt_tokens, ended.cached_tokens) for name, ended in found.items())
    return _biggest_first(prompts)


def _biggest_first(prompts: Iterable[GuiltyPrompt]) -> tuple[GuiltyPrompt, ...]:
    return tuple(sorted(prompts, key=lambda prompt: prompt.cached_tokens - prompt.prompt_tokens))


def _with_client(found: tuple[ExplainedStall, ...], blocked_s: float) -> tuple[ExplainedStall, ...]:
    """Attribute stalls without a step to the client, the longest first, up to the time that the gateway
    waited.

    That time is known only for the whole stream.
    """
    not_the_engine = {StallCause.STEPS_WENT_ON, StallCause.ENGINE_IDLE, StallCause.UNKNOWN}
    ranked = sorted(range(len(found)), key=lambda index: -found[index].stall.duration_s)
    causes = {}
    for index in ranked:
        excess_s = found[index].stall.excess_s
        if found[index].cause in not_the_engine and blocked_s >= CLIENT_PART * excess_s > 0:
            causes[index] = StallCause.CLIENT
            blocked_s -= excess_s
    return tuple(
        replace(each, cause=causes.get(index, each.cause), steps=() if index in causes else each.steps)
        for index, each in enumerate(found)
    )
