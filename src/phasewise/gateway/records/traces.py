"""Sends the traces that are worth keeping: a share of all requests, and those that were slow or failed.

Its spans are made from the timeline of a request that has ended, named as OpenTelemetry's conventions for
generative AI name them. No span holds a text, an address or a key. What no clock measured is a span called
`unexplained`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from math import inf

from phasewise.core.latency import e2e_s, longest_stall_s, meets, tpot_s, ttft_breakdown, ttft_s
from phasewise.core.ports import TraceExporter
from phasewise.core.slo import Slo
from phasewise.core.timeline import Attempt, Outcome, Part, Source, Span, Timeline
from phasewise.core.trace_context import Attributes, AttributeValue, SpanKind, TraceLoss, TraceSpan
from phasewise.gateway.records.logs import NO_MODEL
from phasewise.gateway.records.metric_families import CLIENTS_OWN, UNEXPLAINED


class TraceSink:
    """A TimelineSink that decides when a request has ended whether its trace is kept.

    `slow_per_s` bounds how many are kept for being slow or failed: under overload, nearly all requests are.
    """

    def __init__(
        self,
        exporter: TraceExporter,
        slow_per_s: int,
        slo_of: Callable[[str], Slo],
        models: Callable[[], Container[str]],
    ) -> None:
        self._exporter = exporter
        self._slo_of = slo_of
        self._models = models
        self._slow_per_s = slow_per_s
        self._allowed = float(slow_per_s)
        self._counted_unix_s = 0.0

    def record(self, timeline: Timeline) -> None:
        """Send the request's spans if it was sampled, slow or failed."""
        trace = timeline.trace
        if trace is None or not trace.spans:
            return
        met = _met(timeline, self._slo_of(timeline.slo_class))
        if not trace.sampled and met:
            return
        if not trace.sampled and not self._may_keep(timeline.started_unix_s + timeline.ended_s):
            self._exporter.drop(TraceLoss.RATE_LIMITED)
            return
        model = timeline.model if timeline.model in self._models() else NO_MODEL
        self._exporter.send(timeline, spans_of(timeline, trace.operation, model, met=met))

    def _may_keep(self, now_unix_s: float) -> bool:
        """Take one from a token bucket that holds a second's worth."""
        passed_s = max(0.0, now_unix_s - self._counted_unix_s)
        self._counted_unix_s = now_unix_s
        self._allowed = min(self._slow_per_s, self._allowed + passed_s * self._slow_per_s)
        if self._allowed < 1.0:
            return False
        self._allowed -= 1.0
        return True


def _met(timeline: Timeline, slo: Slo) -> bool:
    """Whether nothing was wrong with how the request was served; a client's own mistakes count as served."""
    if timeline.reason in CLIENTS_OWN:
        return True
    return meets(timeline, slo) if timeline.generates else timeline.outcome is Outcome.SUCCEEDED


# --- The spans of one request.

FAILED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})
_ENGINE_TIMES = {
    Part.ENGINE_QUEUE: "gen_ai.latency.time_in_queue",
    Part.PREFILL: "gen_ai.latency.time_in_model_prefill",
    Part.DECODE: "gen_ai.latency.time_in_model_decode",
}
"""What vLLM and SGLang call these times in spans of their own."""


def spans_of(timeline: Timeline, operation: str, model: str, *, met: bool) -> list[TraceSpan]:
    """The request, then its attempts in order, then the parts of both.

    `model` is not taken from the timeline, because clients may name one that does not exist.
    """
    attributes = _request_attributes(timeline, operation, model) | {"phasewise.slo.met": met}
    name, ended_s, error = f"{operation} {model}", timeline.ended_s, _error_of(timeline)
    spans = [TraceSpan(name, None, 0.0, ended_s, SpanKind.SERVER, attributes, error)]
    spans += map(_attempt_span, timeline.attempts)
    place_of: dict[Part, int] = {}
    for span in timeline.spans:
        parent = 0 if span.within is None else place_of.get(span.within, 0)
        place_of.setdefault(span.part, len(spans))
        spans.append(_part_span(parent, span, 0.0))
    for index, attempt in enumerate(timeline.attempts, 1):
        spans += _parts_of_attempt(timeline, attempt, index)
    return spans


def _request_attributes(timeline: Timeline, operation: str, model: str) -> Attributes:
    first_s, per_token_s, whole_s = ttft_s(timeline), tpot_s(timeline), e2e_s(timeline)
    breakdown, cache, placement = ttft_breakdown(timeline), timeline.cache, timeline.placement
    found: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": model,
        "gen_ai.request.id": timeline.request_id,
        "gen_ai.request.stream": timeline.streamed,
        "gen_ai.request.choice.count": timeline.choices if timeline.choices != 1 else None,
        "gen_ai.response.finish_reasons": (timeline.finish_reason,) if timeline.finish_reason else None,
        "gen_ai.usage.input_tokens": timeline.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": timeline.cached_tokens,
        "gen_ai.usage.output_tokens": timeline.output_tokens,
        "gen_ai.server.time_to_first_token": first_s,
        "gen_ai.server.time_per_output_token": per_token_s,
        "gen_ai.latency.time_to_first_token": first_s,
        "gen_ai.latency.e2e": whole_s,
        "error.type": _error_of(timeline),
        "phasewise.outcome": timeline.outcome.value,
        "phasewise.reason": timeline.reason,
        "phasewise.tenant": timeline.tenant,
        "phasewise.slo.class": timeline.slo_class,
        "phasewise.ttft.unexplained": None if breakdown is None else max(0.0, breakdown.unexplained_s),
        "phasewise.longest_stall": longest_stall_s(timeline),
        "phasewise.client_blocked": timeline.client_blocked_s,
        "phasewise.cache.result": None if cache is None else cache.result.value,
        "phasewise.placement.policy": None if placement is None else placement.policy,
    }
    for attempt in (timeline.reading_attempt, timeline.serving_attempt):
        for span in () if attempt is None else attempt.spans:
            if name := _ENGINE_TIMES.get(span.part):
                found.setdefault(name, span.duration_s)
    return {name: value for name, value in found.items() if value is not None}


def _error_of(timeline: Timeline) -> str | None:
    """Why the request failed; None for one that was answered, given up by its client, or wrong."""
    rejected = timeline.outcome is Outcome.REJECTED and timeline.reason not in CLIENTS_OWN
    return (timeline.reason or timeline.outcome.value) if rejected or timeline.outcome in FAILED else None


def _attempt_span(attempt: Attempt) -> TraceSpan:
    error = attempt.outcome.value if attempt.outcome in FAILED else None
    attributes: Attributes = {
        "phasewise.attempt.kind": attempt.kind.value,
        "phasewise.worker": attempt.worker.name,
        "phasewise.outcome": attempt.outcome.value,
    }
    if attempt.engine_request_id is not None:
        attributes["gen_ai.response.id"] = attempt.engine_request_id
    if error is not None:
        attributes["error.type"] = error
    name = f"attempt {attempt.kind.value}"
    return TraceSpan(name, 0, attempt.started_s, attempt.ended_s, SpanKind.CLIENT, attributes, error)


def _parts_of_attempt(timeline: Timeline, attempt: Attempt, index: int) -> Iterator[TraceSpan]:
    """What the engine reported has no start: each part follows the one before, from when it got the request.

    So the time that no clock measured stands at the end, before the first token and after the last.
    """
    at_s = _sent_s(timeline, attempt)
    first_s = ttft_s(timeline) if attempt is timeline.serving_attempt else None
    decode: Span | None = None
    for span in attempt.spans:
        if span.part is Part.DECODE and first_s is not None:
            decode = span
            continue
        yield _part_span(index, span, at_s)
        at_s += span.duration_s
    if first_s is None:
        yield from _unexplained(index, at_s, attempt.ended_s)
        return
    yield from _unexplained(index, at_s, first_s)
    end_s = min(attempt.ended_s, inf if timeline.finished_s is None else timeline.finished_s)
    if decode is None:
        decode = Span(Part.DECODE, Source.GATEWAY_CLOCK, max(0.0, end_s - first_s), first_s)
    yield _part_span(index, decode, first_s)
    yield from _unexplained(index, first_s + decode.duration_s, end_s)


def _sent_s(timeline: Timeline, attempt: Attempt) -> float:
    """When the worker got the request: where a wait in the gateway ends within the attempt."""
    ends_s = (
        (span.start_s or 0.0) + span.duration_s for span in timeline.spans if span.part is Part.GATEWAY_WAIT
    )
    return max(
        (end_s for end_s in ends_s if attempt.started_s <= end_s <= attempt.ended_s),
        default=attempt.started_s,
    )


def _part_span(parent: int, span: Span, at_s: float) -> TraceSpan:
    start_s = at_s if span.start_s is None else span.start_s
    attributes: Attributes = {
        "phasewise.source": span.source.value,
        "phasewise.start_observed": span.start_s is not None,
    }
    return TraceSpan(span.part.value, parent, start_s, start_s + span.duration_s, attributes=attributes)


def _unexplained(parent: int, start_s: float, end_s: float) -> Iterator[TraceSpan]:
    if end_s > start_s:
        attributes: Attributes = {"phasewise.source": Source.DERIVED.value, "phasewise.start_observed": False}
        yield TraceSpan(UNEXPLAINED, parent, start_s, end_s, attributes=attributes)
