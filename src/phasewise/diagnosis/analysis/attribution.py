"""Matches timelines to engine steps, and adds spans: the wait for a running step, other requests' prefill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from phasewise.core.latency import ttft_breakdown
from phasewise.core.steps import EngineMoments, FinishedRequest, StepLog, TimedStep
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Source, Span, Timeline
from phasewise.costs.fit.step import StepWork, prefilling
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.analysis.engine_load import SLOTS_TAKEN
from phasewise.diagnosis.analysis.step_reading import StepReading, recomputed_tokens
from phasewise.diagnosis.analysis.unnamed_prompt import PromptStep, prompt_steps

TAKEN_IN_S = 0.03
"""Tolerance between the end of a step and the queueing of the request that waited for it (two clocks)."""

Logs = Mapping[str, tuple[StepLog, ...]]
"""The step record of each worker that has one, by the worker's name; one log per data-parallel rank."""
Readings = Mapping[str, tuple[StepReading, ...]]
"""The same records, read with the engine's costs."""


def readings_of(logs: Logs, fit: StepFit | None = None) -> Readings:
    """Readers of every record, with the engine's fitted costs if there are any."""
    return {
        name: tuple(_reading(log, fit if fit is not None and fit.is_of(name) else None) for log in ranks)
        for name, ranks in logs.items()
    }


def _reading(log: StepLog, fit: StepFit | None) -> StepReading:
    return (
        StepReading(log) if fit is None else StepReading(log, fit.cost, separates_parts=fit.separates_batches)
    )


def reading_of(timeline: Timeline, readings: Readings) -> StepReading | None:
    """The record of the rank that served the request; None if it is unknown."""
    serving = timeline.serving_attempt
    return None if serving is None else attempt_reading(serving, readings)


def attempt_reading(attempt: Attempt, readings: Readings) -> StepReading | None:
    """The record of the rank that served the attempt; None if it is unknown."""
    ranks = readings.get(attempt.worker.name, ())
    if len(ranks) == 1:
        return ranks[0]
    request_id = attempt.engine_request_id
    return next((rank for rank in ranks if request_id and rank.log.finished(request_id) is not None), None)


def explained(timelines: Iterable[Timeline], readings: Readings) -> tuple[Timeline, ...]:
    """The timelines with the spans that the step records add."""
    return tuple(_explained(timeline, readings) for timeline in timelines)


def _explained(timeline: Timeline, readings: Readings) -> Timeline:
    seen, prefill = timeline, timeline.prefill_attempt
    for attempt in (prefill, timeline.serving_attempt):
        found = None if attempt is None else attempt_reading(attempt, readings)
        if attempt is not None and found is not None:
            seen = attribute(seen, found, attempt)
    if not _reports_prefill_alone(timeline):
        return seen
    reading = reading_of(seen, readings)
    return _with_unreported_queue(seen) if reading is None or _had_to_wait(seen, reading) else seen


def _reports_prefill_alone(timeline: Timeline) -> bool:
    """Whether its engine reports how long its prompt took, and not how long it waited before."""
    serving = timeline.serving_attempt
    if serving is None or serving.kind is not AttemptKind.LOCAL:
        return False
    parts = {span.part: span.source for span in serving.spans}
    return parts.get(Part.PREFILL) is Source.ENGINE_REPORT and Part.ENGINE_QUEUE not in parts


def _had_to_wait(timeline: Timeline, reading: StepReading) -> bool:
    """Whether it waited for a slot for longer than its engine's record says.

    A record that counts who waits knows it of the requests that are found in it. One that does not shows only
    that no slot was free.
    """
    steps, serving = reading.log.steps, timeline.serving_attempt
    if serving is None:
        return False
    if any(timed.step.waiting for timed in steps):
        return all(span.part is not Part.ENGINE_QUEUE for span in serving.spans)
    most = max((timed.step.running for timed in steps), default=0)
    before = reading.log.ending_between(*engine_time(timeline, serving))
    return sum(timed.step.running >= most for timed in before) > SLOTS_TAKEN * len(before)


def _with_unreported_queue(timeline: Timeline) -> Timeline:
    """The timeline with what is left of its TTFT as a wait in the engine."""
    serving, breakdown = timeline.serving_attempt, ttft_breakdown(timeline)
    if serving is None or breakdown is None or breakdown.unexplained_s <= 0:
        return timeline
    kept = tuple(span for span in serving.spans if span.part is not Part.ENGINE_QUEUE)
    waited_s = breakdown.unexplained_s + (breakdown.seconds(Part.ENGINE_QUEUE) or 0.0)
    return _with_spans(timeline, serving, (*kept, Span(Part.ENGINE_QUEUE, Source.DERIVED, waited_s)))


def _with_spans(timeline: Timeline, attempt: Attempt, spans: tuple[Span, ...]) -> Timeline:
    enriched = replace(attempt, spans=spans)
    return replace(
        timeline, attempts=tuple(enriched if each is attempt else each for each in timeline.attempts)
    )


def attribute(timeline: Timeline, reading: StepReading, of: Attempt | None = None) -> Timeline:
    """The timeline with the spans that the step record adds to an attempt, by default the serving one.

    Unchanged if it adds nothing.
    """
    tried = of or timeline.serving_attempt
    if tried is None:
        return timeline
    # Of an answer that broke off and went on elsewhere, the engine has no end either.
    broke_off = bool(timeline.content_times_s) and tried.outcome is not Outcome.SUCCEEDED
    cut_off = broke_off or tried.outcome in {Outcome.UNFINISHED, Outcome.CANCELLED}
    found = reading.log.finished(tried.engine_request_id or "")
    if found is None:
        return _estimated(timeline, tried, reading) if cut_off else timeline
    seen, ended = found
    spans = _spans(timeline, tried, seen, ended, reading)
    enriched = _with_spans(timeline, tried, spans)
    if tried.kind is AttemptKind.PREFILL_SIDE:
        return enriched  # its answer was discarded
    return replace(
        enriched,
        prompt_tokens=_known(timeline.prompt_tokens, ended.prompt_tokens),
        cached_tokens=_known(timeline.cached_tokens, ended.cached_tokens),
        output_tokens=_known(timeline.output_tokens, ended.output_tokens),
    )


def _estimated(timeline: Timeline, tried: Attempt, reading: StepReading) -> Timeline:
    """The parts of a request that the record does not show to its end, because it is open or was cut off.

    The engine has it since it was sent. Until its first token, or until now, steps with its prompt are its
    own prefill by its share of them, and before them it waited. If none is found, steps with prompts are
    other requests', and in the rest it waited.
    """
    if any(span.part is Part.PREFILL for span in tried.spans) or tried.kind is not AttemptKind.LOCAL:
        return timeline
    begin_s, until_s = engine_time(timeline, tried)
    own = unnamed_prompt_steps(timeline, tried, reading)
    if not reading.log.steps or until_s <= begin_s:
        return timeline
    if not own and reading.log.steps[0].step.ended_unix_s > until_s:
        return timeline
    own_s, others_s = _own_and_others_s(own, begin_s, until_s, reading)
    if not own:
        steps = reading.log.ending_between(begin_s, until_s)
        others_s = sum(_since_s(timed, begin_s) for timed in steps if timed.step.prompt_tokens)
    parts = {
        Part.PREFILL: own_s,
        Part.PREFILL_OTHERS: others_s,
        Part.ENGINE_QUEUE: max(0.0, until_s - begin_s - own_s - others_s),
    }
    spans = tuple(
        Span(part, Source.STEP_RECORD, duration_s) for part, duration_s in parts.items() if duration_s > 0
    )
    return _with_spans(timeline, tried, tried.spans + spans)


def engine_time(timeline: Timeline, tried: Attempt) -> tuple[float, float]:
    """Since when the engine has the request, and until when it had sent no token of it."""
    waits = [span for span in timeline.spans if span.part is Part.GATEWAY_WAIT and span.start_s is not None]
    sent_s = max([tried.started_s, *((span.start_s or 0.0) + span.duration_s for span in waits)])
    until_s = timeline.content_times_s[0] if timeline.content_times_s else timeline.ended_s
    return timeline.started_unix_s + sent_s, timeline.started_unix_s + until_s


def unnamed_prompt_steps(timeline: Timeline, tried: Attempt, reading: StepReading) -> tuple[PromptStep, ...]:
    """The steps with the prompt of a request that the record does not show to its end."""
    begin_s, until_s = engine_time(timeline, tried)
    return prompt_steps(begin_s, until_s, reading, answered=bool(timeline.content_times_s))


def _own_and_others_s(
    own: Sequence[PromptStep], begin_s: float, until_s: float, reading: StepReading
) -> tuple[float, float]:
    """The time of the request's own prompt in its steps, and the rest of these steps."""
    own_s = others_s = computed = 0.0
    for step in own:
        start_s, ended_s = reading.start_s(step.timed) or begin_s, step.timed.step.ended_unix_s
        within_s = max(0.0, min(until_s, ended_s) - max(begin_s, start_s))
        if within_s:
            tokens = (round(step.tokens), round(computed))
            share = _own_share_of_step(step.timed, ended_s - start_s, *tokens, reading)
            own_s, others_s = own_s + within_s * share, others_s + within_s * (1 - share)
        computed += step.tokens
    return own_s, others_s


def _since_s(timed: TimedStep, begin_s: float) -> float:
    return timed.step.ended_unix_s - max(begin_s, timed.started_unix_s or begin_s)


def _known(reported: int | None, recorded: int) -> int:
    return recorded if reported is None else reported


def _spans(
    timeline: Timeline, attempt: Attempt, seen: EngineMoments, ended: FinishedRequest, reading: StepReading
) -> tuple[Span, ...]:
    kept = tuple(span for span in attempt.spans if span.source is not Source.STEP_RECORD)
    reported = {span.part: span for span in kept}
    start_s = timeline.started_unix_s
    prefill = reported.pop(Part.PREFILL, None)
    spans = list(reported.values())
    # The queue of a decode side is its KV transfer, and what a prefill side wrote was discarded.
    queue = Part.KV_TRANSFER if attempt.kind is AttemptKind.DECODE_SIDE else Part.ENGINE_QUEUE
    if queue not in reported:
        spans.append(_recorded(queue, seen.queue_s, seen.queued_unix_s - start_s))
    if Part.DECODE not in reported and attempt.kind is not AttemptKind.PREFILL_SIDE:
        spans.append(_recorded(Part.DECODE, seen.decode_s, seen.first_token_unix_s - start_s))
    spans += _in_flight_span(seen, reading.log, start_s)
    whole = prefill or _recorded(Part.PREFILL, seen.prefill_s, seen.scheduled_unix_s - start_s)
    fetched = attempt.kind is AttemptKind.DECODE_SIDE  # its prompt was in no step of this engine
    spans += [whole] if fetched else _prefill_spans(whole, seen, ended, reading)
    return tuple(spans)


def _recorded(part: Part, duration_s: float, start_s: float | None) -> Span:
    return Span(part, Source.STEP_RECORD, duration_s, start_s)


def _in_flight_span(seen: EngineMoments, log: StepLog, start_s: float) -> list[Span]:
    """The engine admits requests between steps: one that arrives during a step waits for its end.

    That is the step which ended when the request was queued. It may have begun after the request arrived: the
    front end takes a while to pass it on.
    """
    arrived_s, queued_s = seen.arrived_unix_s, seen.queued_unix_s
    waits = [
        (min(timed.step.ended_unix_s, queued_s) - from_s, from_s)
        for timed in log.ending_between(max(arrived_s, queued_s - TAKEN_IN_S), queued_s + TAKEN_IN_S)
        if timed.started_unix_s is not None
        for from_s in (max(arrived_s, timed.started_unix_s),)
    ]
    waited_s, from_s = max(waits, default=(0.0, 0.0))
    return [_recorded(Part.STEP_IN_FLIGHT, waited_s, from_s - start_s)] if waited_s > 0 else []


def _prefill_spans(
    whole: Span, seen: EngineMoments, ended: FinishedRequest, reading: StepReading
) -> list[Span]:
    """Split a prefill into the request's own part and other requests' part.

    Unchanged if the record lacks some of the prompt's steps.
    """
    steps = reading.prefill_steps(seen)
    own_tokens = ended.prompt_tokens - ended.cached_tokens
    prompt_tokens = sum(timed.step.prompt_tokens or 0 for timed in steps)
    if own_tokens <= 0 or prompt_tokens < own_tokens:
        return [whole]
    own_s = whole.duration_s * _own_share(steps, own_tokens / prompt_tokens, ended.cached_tokens, reading)
    own = replace(whole, source=Source.STEP_RECORD, duration_s=own_s)
    others_s = whole.duration_s - own_s
    return [own, _recorded(Part.PREFILL_OTHERS, others_s, None)] if others_s > 0 else [own]


def _own_share(
    steps: Sequence[TimedStep], of_prompts: float, cached_tokens: int, reading: StepReading
) -> float:
    """The prompt's share of its steps' time; of each step's prompt tokens, `of_prompts` count as its own."""
    known = [timed.duration_s for timed in steps if timed.duration_s is not None and timed.duration_s > 0]
    usual_s = fmean(known or [1.0])
    whole_s = own_s = 0.0
    computed = cached_tokens
    for timed in steps:
        duration_s = usual_s if timed.duration_s is None or timed.duration_s <= 0 else timed.duration_s
        tokens = round((timed.step.prompt_tokens or 0) * of_prompts)
        own_s += duration_s * _own_share_of_step(timed, duration_s, tokens, computed, reading)
        whole_s += duration_s
        computed += tokens
    return own_s / whole_s


def _own_share_of_step(
    timed: TimedStep, duration_s: float, tokens: int, context_tokens: int, reading: StepReading
) -> float:
    """The time that this prompt added to the step is its own; the time that the others added is theirs.

    The fixed part is shared by tokens. Without known costs, running streams are assumed to need a
    typical decode step, and prompts share the rest by tokens.
    """
    prompts = timed.step.prompt_tokens or 0
    if not tokens or not prompts:
        return 0.0
    work = reading.work(timed)
    if reading.cost is None or work is None or (whole_s := reading.cost(work)) <= 0:
        streams_s = (reading.log.usual_decode_step_s or 0.0) if timed.step.decode_tokens else 0.0
        computed = prompts + recomputed_tokens(timed.step)
        return max(0.0, duration_s - streams_s) / duration_s * tokens / computed
    own = prefilling(min(tokens, work.prompt_tokens), context_tokens)
    rest = _without(work, own)
    if not rest.tokens:
        return 1.0
    more_for_own_s = whole_s - reading.cost(rest)
    more_for_rest_s = whole_s - reading.cost(own)
    in_any_case_s = whole_s - more_for_own_s - more_for_rest_s
    own_s = more_for_own_s + in_any_case_s * own.tokens / work.tokens
    return min(1.0, max(0.0, own_s / whole_s))


def _without(work: StepWork, own: StepWork) -> StepWork:
    return StepWork(
        prompt_tokens=work.prompt_tokens - own.prompt_tokens,
        decode_tokens=work.decode_tokens,
        requests=max(0, work.requests - own.requests),
        attention_token_pairs=max(0, work.attention_token_pairs - own.attention_token_pairs),
        kv_read_tokens=work.kv_read_tokens,
    )
