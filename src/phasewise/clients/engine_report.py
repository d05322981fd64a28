"""Reads a reply's `usage` as counts and vLLM's per-request `metrics` as spans; missing fields are None."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from phasewise.core.timeline import Part, Source, Span
from phasewise.core.value import value

_PARTS_MS = (
    ("queue_time_ms", Part.ENGINE_QUEUE),
    # Despite its name, this runs from scheduled to first token and excludes the queue.
    ("time_to_first_token_ms", Part.PREFILL),
    ("generation_time_ms", Part.DECODE),
)


@value
class EngineReport:
    """A reply's counts and phase durations; None and () where the engine reports nothing.

    `cached_tokens` needs `--enable-prompt-tokens-details`; a cold prompt is then 0.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    spans: tuple[Span, ...] = ()


def read_report(usage: Mapping[str, Any] | None, metrics: Mapping[str, Any] | None) -> EngineReport:
    """Read both objects of a reply; each may be missing."""
    usage = usage or {}
    details = usage.get("prompt_tokens_details")
    return EngineReport(
        _count(usage.get("prompt_tokens")),
        _count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        _count(usage.get("completion_tokens")),
        phase_spans(metrics),
    )


def phase_spans(metrics: Mapping[str, Any] | None) -> tuple[Span, ...]:
    """The phases that the engine timed. It reports durations, not start times."""
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
