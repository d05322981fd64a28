"""The protocols that adapters and stores fulfil, so that callers name what they need and not who does it."""

from __future__ import annotations

from typing import Protocol

from phasewise.model.timeline import Timeline


class TimelineSink(Protocol):
    """Takes each request's timeline once, when the request has ended."""

    def record(self, timeline: Timeline) -> None:
        """Keep or count the timeline; must not block."""
