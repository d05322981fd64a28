"""One request's time in a sentence and as a ledger whose parts add up, for the screen and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.core.latency import TtftBreakdown, e2e_s, fitted, tpot_s, ttft_breakdown, ttft_s, wait_so_far
from phasewise.core.own_rejections import OWN_REJECTIONS
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Source, Timeline
from phasewise.core.units import counted, duration
from phasewise.diagnosis.analysis.request_life import LifeStep, RequestLife, StepRole
from phasewise.diagnosis.analysis.stall_causes import (
    ExplainedStall,
    GuiltyPrompt,
    StallCause,
    waits_for_workers,
)
from phasewise.diagnosis.analysis.token_ledger import token_ledger
from phasewise.report.diagnosis.words import STALLS
from phasewise.report.time_parts import (
    PHASES,
    LedgerRow,
    rows_of_parts,
    token_rows,
    with_gateway_stages,
    with_rest,
)

WORTH_NAMING = 0.1
"""The sentence names its own prefill and parts of at least this share; the ledger has all of them."""
LEAST_WAIT_S = 0.1
"""A shorter wait between two workers is not named."""
_ENDED = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.TIMED_OUT: "timed out",
    Outcome.REJECTED: "was rejected",
    Outcome.UNFINISHED: "is unfinished",
}
_PARTS = {
    Part.CLIENT_LAG: "before it was sent",
    Part.GATEWAY_WAIT: "in the gateway",
    Part.CACHE_LOOK_UP: "looking for a stored answer",
    Part.EARLIER_ATTEMPTS: "in earlier attempts",
    Part.ENGINE_QUEUE: "in the engine's queue",
    Part.PREFILL_OTHERS: "for other requests' prompts in the same steps",
    Part.KV_TRANSFER: "for the transfer of its KV",
}

_STAGES = {
    "limits": "its key's limits",
    "reading": "reading its body",
    "parsing": "parsing it",
    "queue": "waiting for a slot",
}


@dataclass(frozen=True, slots=True)
class RequestLedger:
    """A request's time: the rows until its first token or its reply, and those of its stream.

    The rows of each group add up to the group's time, and both groups to `whole_s`.
    """

    start: tuple[LedgerRow, ...]
    start_s: float
    stream: tuple[LedgerRow, ...] = ()
    stream_s: float = 0.0

    @property
    def whole_s(self) -> float:
        """From its arrival to its end."""
        return self.start_s + self.stream_s


def ledger_of(life: RequestLife) -> RequestLedger:
    timeline = life.timeline
    found = _until_first_token(timeline)
    decode = _decode_of_plain_reply(timeline)
    rest_s = found.unexplained_s - sum(row.seconds for row in decode)
    parts = with_rest((*rows_of_parts(found.parts), *decode), rest_s)
    start = tuple(row for row in with_gateway_stages(parts, timeline.in_gateway) if row.seconds)
    stream = None if life.stream is None else token_ledger((life.stream,))
    if stream is None:
        return RequestLedger(start, found.ttft_s)
    rows = _with_waits(token_rows(stream, recorded=bool(life.steps)), timeline)
    return RequestLedger(start, found.ttft_s, tuple(row for row in rows if row.seconds), stream.total_s)


def _with_waits(rows: Sequence[LedgerRow], timeline: Timeline) -> tuple[LedgerRow, ...]:
    """The rows of a stream; what it waited for a worker is the gateway's, and not unexplained."""
    first_s = ttft_s(timeline) or 0.0
    waited_s = sum(
        until_s - since_s for since_s, until_s in waits_for_workers(timeline) if since_s >= first_s
    )
    if not waited_s:
        return tuple(rows)
    wait = LedgerRow(
        "gateway, waiting for a worker", waited_s, "gateway clock", PHASES[Part.GATEWAY_WAIT].colour
    )
    return with_rest((*rows[:-1], wait), rows[-1].seconds - waited_s)


def _until_first_token(timeline: Timeline) -> TtftBreakdown:
    return fitted(ttft_breakdown(timeline) or wait_so_far(timeline))


def _decode_of_plain_reply(timeline: Timeline) -> tuple[LedgerRow, ...]:
    """A reply that is not streamed comes after its last token."""
    serving = timeline.serving_attempt
    if ttft_s(timeline) is not None or serving is None:
        return ()
    return tuple(
        LedgerRow("decode", span.duration_s, span.source.replace("_", " "), PHASES[Part.DECODE].colour)
        for span in serving.spans
        if span.part is Part.DECODE
    )


SHORT_ID = 8
"""Characters of an id that are enough among thousands of requests; `explain` takes a beginning."""


def short_id(any_id: str) -> str:
    """The beginning of a gateway's id, also out of the engine's."""
    return any_id.removeprefix("chatcmpl-").removeprefix("cmpl-")[:SHORT_ID]


# --- The sentence.


def where_the_time_went(life: RequestLife) -> str:
    """First until the first token, then the stream."""
    timeline = life.timeline
    if timeline.from_cache:
        return f"Answered from the cache in {duration(e2e_s(timeline) or timeline.ended_s)}."
    own = OWN_REJECTIONS.get(timeline.reason or "") if timeline.outcome is Outcome.REJECTED else None
    rejected = "" if own is None else f" The gateway rejected it: {own}."
    return f"{_failures(timeline)}{_start(life)}.{_stream(life)}{rejected}"


def _failures(timeline: Timeline) -> str:
    """Which workers failed it and what that cost, each in a sentence."""
    after = [*timeline.attempts[1:], None]
    pairs = zip(timeline.attempts, after, strict=False)
    lost = (pair for pair in pairs if pair[0].outcome in {Outcome.FAILED, Outcome.TIMED_OUT})
    return "".join(f"{_failure(failed, then, timeline)}. " for failed, then in lost)


def _failure(failed: Attempt, then: Attempt | None, timeline: Timeline) -> str:
    why = f" ({failed.note})" if failed.note else ""
    lasted = duration(failed.ended_s - failed.started_s)
    text = f"{failed.worker.name} {_ENDED[failed.outcome]} after {lasted}{why}"
    waited_s = (timeline.ended_s if then is None else then.started_s) - failed.ended_s
    if waited_s >= LEAST_WAIT_S:
        text += f", the gateway waited {duration(waited_s)} for a worker"
    if then is None:
        return text if waited_s < LEAST_WAIT_S else f"{text}, and none came"
    if then.kind is not AttemptKind.RESUMED:
        return f"{text}, and {then.worker.name} got the request"
    before = [time_s for time_s in timeline.content_times_s if time_s <= failed.ended_s]
    later = [time_s for time_s in timeline.content_times_s if time_s > then.started_s]
    if not before or not later:
        return f"{text}, and {then.worker.name} was asked to go on"
    return f"{text}, and {then.worker.name} went on after a gap of {duration(later[0] - before[-1])}"


def _start(life: RequestLife) -> str:
    timeline = life.timeline
    found, decode = _until_first_token(timeline), _decode_of_plain_reply(timeline)
    least_s = WORTH_NAMING * found.ttft_s
    named = [
        _part(life, entry.part, entry.source, entry.seconds)
        for entry in found.parts
        if entry.seconds >= least_s > 0 or entry.part is Part.PREFILL
    ]
    tokens = counted(timeline.output_tokens or 0, "token")
    named += [f"{duration(row.seconds)} decode of {tokens}" for row in decode]
    left_s = max(0.0, found.unexplained_s - sum(row.seconds for row in decode))
    if left_s >= least_s > 0 or not named:
        named.append(f"{duration(left_s)} unexplained")
    return f"{_what(timeline)} {duration(found.ttft_s)}: {', then '.join(named)}"


def _what(timeline: Timeline) -> str:
    if ttft_s(timeline) is not None:
        return "TTFT"
    if timeline.outcome is Outcome.SUCCEEDED:
        return "Answered in one piece after"
    why = f" ({timeline.reason.replace('_', ' ')})" if timeline.reason else ""
    return f"The request {_ENDED[timeline.outcome]}{why} without an answer after"


def _part(life: RequestLife, part: Part, source: Source, seconds: float) -> str:
    took, timeline = duration(seconds), life.timeline
    if part is Part.STEP_IN_FLIGHT:
        waited = max(life.of(StepRole.IN_FLIGHT), key=lambda step: step.end_s - step.start_s, default=None)
        return f"{took} waiting for {'a running step' if waited is None else step_in_words(waited)}"
    if part is Part.ENGINE_QUEUE and (steps := life.of(StepRole.QUEUED)):
        tokens = sum(step.other_prompt_tokens for step in steps)
        others = _prompts(tokens, _others(steps))
        during = f" while {counted(len(steps), 'step')} read {others}" if tokens else ""
        return f"{took} in the engine's queue{during}"
    if part is Part.PREFILL:
        if source is not Source.STEP_RECORD:
            return f"{took} prefill (own and others', not separable)"
        of = " of a prompt of unknown length" if timeline.content_times_s else ", not finished"
        if life.prefill_tokens is not None:
            of = f" of {counted(life.prefill_tokens, 'token')}"
        return f"{took} own prefill{of}"
    if part is Part.GATEWAY_WAIT and timeline.in_gateway is not None:
        stage, stage_s = max(timeline.in_gateway.stages, key=lambda stage: stage[1])
        if stage_s >= seconds / 2 > 0:
            return f"{took} {_PARTS[part]} ({_STAGES[stage]} {duration(min(stage_s, seconds))})"
    return f"{took} {_PARTS[part]}"


def _others(steps: Sequence[LifeStep]) -> tuple[GuiltyPrompt, ...]:
    return tuple({request.request_id: request for step in steps for request in step.others}.values())


def step_in_words(step: LifeStep) -> str:
    """What a step of others did."""
    carried = step.timed.step.prompt_tokens
    if carried is None:
        return "a running step"
    return f"a step that read {_prompts(carried, step.others)}" if carried else "a running decode step"


def _prompts(tokens: int, whose: Sequence[GuiltyPrompt]) -> str:
    if len(whose) != 1:
        return f"{tokens:,} prompt tokens of {len(whose) or ''}{' ' if whose else ''}other requests"
    (prompt,) = whose
    a_part = "" if tokens >= prompt.prompt_tokens - prompt.cached_tokens else f"{tokens:,} tokens of "
    return f"{a_part}another request's {prompt.prompt_tokens:,}-token prompt"


def _stream(life: RequestLife) -> str:
    timeline, first_s = life.timeline, ttft_s(life.timeline)
    if first_s is None or life.stream is None:
        return ""
    whole_s, per_token_s = e2e_s(timeline), tpot_s(timeline)
    if whole_s is None:
        chunks = counted(len(timeline.content_times_s), "chunk")
        ended = f"{_ENDED[timeline.outcome]} {duration(timeline.ended_s - first_s)} later"
        text = f" The stream {ended}, after {chunks}"
    elif per_token_s is None:
        text = f" The rest came within {duration(whole_s - first_s)}"
    else:
        tokens = counted(timeline.output_tokens or 0, "token")
        text = f" Streaming took {duration(whole_s - first_s)} for {tokens}, {duration(per_token_s)} each"
    worst = max(life.stalls, key=lambda found: found.stall.duration_s, default=None)
    return f"{text}." if worst is None else f"{text}; {_stall(worst)}."


def _stall(found: ExplainedStall) -> str:
    cause = STALLS[found.cause]
    longest = max(found.steps, key=lambda timed: timed.duration_s or 0.0, default=None)
    if found.cause is StallCause.PREFILL_CHUNK and longest is not None and longest.step.prompt_tokens:
        cause = f"a step that read {_prompts(longest.step.prompt_tokens, found.guilty)}"
    return f"its longest stall, {duration(found.stall.duration_s)}, was {cause}"
