"""Reads a reply's `usage` as counts and its engine's own timings as spans; missing fields are None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phasewise.core.timeline import Span
from phasewise.core.value import value
from phasewise.engines.figures import count_of
from phasewise.engines.known import phase_spans


@value
class EngineReport:
    """A reply's counts and phase durations; None and () where the engine reports nothing.

    `cached_tokens` may need a setting of the engine; a cold prompt is then 0.
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
        count_of(usage.get("prompt_tokens")),
        count_of(details.get("cached_tokens")) if isinstance(details, dict) else None,
        count_of(usage.get("completion_tokens")),
        phase_spans(metrics),
    )
