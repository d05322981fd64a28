"""What a reply says of itself: its `usage` as counts and vLLM's per-request `metrics` as spans.

Fields that are missing stay unknown. Where a reply's JSON is found, and what the spans add up to, is left
to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from phasewise.model.noun import noun
from phasewise.model.timeline import Part, Source, Span

_PARTS_MS = (
    ("queue_time_ms", Part.ENGINE_QUEUE),
    # In spite of its name this runs from scheduled to first token; it leaves the queue out.
    ("time_to_first_token_ms", Part.PREFILL),
    ("generation_time_ms", Part.DECODE),
)


@noun
class EngineReport:
    """A reply's counts and phase durations; None and () where the engine did not say.

    `cached_tokens` needs `--enable-prompt-tokens-details`; a cold prompt is then 0.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    spans: tuple[Span, ...] = ()


def read_report(usage: Mapping[str, Any] | None, metrics: Mapping[str, Any] | None) -> EngineReport:
    """Read both objects of a reply, each of which may be missing."""
    usage = usage or {}
    details = usage.get("prompt_tokens_details")
    return EngineReport(
        _count(usage.get("prompt_tokens")),
        _count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        _count(usage.get("completion_tokens")),
        phase_spans(metrics),
    )


def phase_spans(metrics: Mapping[str, Any] | None) -> tuple[Span, ...]:
    """The phases the engine timed. It says how long they took, not when they began."""
    if not metrics:
        return ()
    durations = ((part, _seconds(metrics.get(name))) for name, part in _PARTS_MS)
    return tuple(
        Span(part, Source.ENGINE_REPORT, seconds) for part, seconds in durations if seconds is not None
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None  # a bool is an int too


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    return milliseconds / 1000 if isfinite(milliseconds) and milliseconds >= 0 else None
