"""A span of a trace, before it takes the form that a backend reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

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
