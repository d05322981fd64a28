"""Traces. W3C Trace Context: which trace a request belongs to, and which span its engines continue; spans.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from phasewise.core.request import Endpoint
from phasewise.core.value import value

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
SAMPLED = 0x01
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]{0,200})?")
# A longer one is dropped, as the recommendation permits.
_STATE = re.compile(rb"[ -~]{1,512}")
_OPERATIONS = {
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.EMBEDDINGS: "embeddings",
    Endpoint.COUNT_TOKENS: "count_tokens",
}
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16
_SPAN_IDS = 1 << 64


@value
class TraceContext:
    """The trace of one request. `parent_id` is its client's span, None if the trace begins in the gateway.

    Without `spans` the gateway adds none of its own, and its engines continue the client's span.
    `operation` is what OpenTelemetry calls the request's endpoint.
    """

    trace_id: str
    parent_id: str | None
    flags: int
    spans: bool
    operation: str = "chat"
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether it was chosen at its beginning, so that engines record their spans too."""
        return bool(self.flags & SAMPLED)


def trace_of(
    headers: Mapping[bytes, bytes], request_id: str, endpoint: Endpoint, sample: float | None = None
) -> TraceContext | None:
    """The trace of a request that arrives with these headers; None if it has none.

    With a share to `sample`, every request has one. A client's own decision stands; otherwise the trace has
    the request's id, whose random digits decide.
    """
    found = _PARENT.fullmatch(headers.get(TRACEPARENT, b""))
    operation = _OPERATIONS.get(endpoint, "chat")
    if found is None or not _is_valid(found):
        if sample is None:
            return None
        chosen = int(request_id[16:], 16) < sample * _SPAN_IDS
        return TraceContext(request_id, None, SAMPLED if chosen else 0, True, operation)
    state = _STATE.fullmatch(headers.get(TRACESTATE, b""))
    return TraceContext(
        found[2].decode(),
        found[3].decode(),
        int(found[4], 16),
        sample is not None,
        operation,
        "" if state is None else state[0].decode(),
    )


def span_id(request_id: str, number: int) -> int:
    """The id of a request's span by its number: 0 is the request, and its attempts count from 1.

    Engines are sent the ids of attempts before any span exists, so they follow from the request's random id.
    """
    return (int(request_id[16:], 16) + number) % _SPAN_IDS or 1


def engine_headers(trace: TraceContext, request_id: str, attempt: int) -> list[tuple[bytes, bytes]]:
    """The headers for an attempt, counted from 1: its engine's spans become children of the attempt's."""
    parent_id = f"{span_id(request_id, attempt):016x}" if trace.spans else trace.parent_id
    headers = [(TRACEPARENT, f"00-{trace.trace_id}-{parent_id}-{trace.flags:02x}".encode())]
    if trace.state:
        headers.append((TRACESTATE, trace.state.encode()))
    return headers


def _is_valid(found: re.Match[bytes]) -> bool:
    version, trace_id, parent_id, _, more = found.groups()
    if version == b"ff" or trace_id == _NO_TRACE or parent_id == _NO_SPAN:
        return False
    # Only later versions may have more fields.
    return more is None or version != b"00"


# --- A span, before it takes the form that a backend reads.

AttributeValue = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, AttributeValue]


class TraceLoss(StrEnum):
    """Why the spans of a request were not sent."""

    QUEUE_FULL = "queue_full"
    NOT_EXPORTED = "not_exported"
    RATE_LIMITED = "rate_limited"


class SpanKind(StrEnum):
    """Where a span is: at the gateway's front, towards an engine, or inside."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


@dataclass(slots=True)
class TraceSpan:
    """A span of a trace. Times are seconds since the timeline's start.

    `parent` is the index of another span of the request; None is the client's span.
    """

    name: str
    parent: int | None
    start_s: float
    end_s: float
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
