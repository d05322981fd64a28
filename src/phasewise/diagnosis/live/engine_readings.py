"""What an engine's counters show now: rates between its last readings."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from phasewise.core.engine_metrics import LoadReading
from phasewise.diagnosis.live.snapshot import LiveEngine

RATES_OVER_S = 10.0
KEPT = 300
"""Readings of one engine that are kept: five minutes of them, if it is read every second."""


class EngineReadings:
    """The last readings of one engine."""

    def __init__(self) -> None:
        self._kept: deque[LoadReading] = deque(maxlen=KEPT)

    def add(self, reading: LoadReading) -> None:
        """Keep a reading. Counters that went back are those of another incarnation."""
        last = self._kept[-1] if self._kept else None
        if last is not None and (reading.steps or 0.0) < (last.steps or 0.0):
            self._kept.clear()
        self._kept.append(reading)

    @property
    def kept(self) -> tuple[LoadReading, ...]:
        """All readings, the oldest first."""
        return tuple(self._kept)

    def engine(
        self,
        name: str,
        *,
        health: str = "up",
        note: str = "",
        open_requests: int | None = None,
    ) -> LiveEngine:
        """The engine as it is now, with what its gateway knows of it."""
        last = self._kept[-1] if self._kept else None
        recent = self._recent()
        return LiveEngine(
            name=name,
            health=health,
            note=note,
            open_requests=open_requests,
            running=None if last is None else last.running,
            waiting=None if last is None else last.waiting,
            kv_usage=None if last is None else last.kv_usage,
            prefix_hits=_prefix_hits(recent),
            step_s=_step_s(recent),
            read_unix_s=None if last is None else last.at_unix_s,
        )

    def _recent(self) -> list[LoadReading]:
        """The last two readings, and those of the last seconds before them."""
        if not self._kept:
            return []
        since_s = self._kept[-1].at_unix_s - RATES_OVER_S
        recent: list[LoadReading] = []
        for reading in reversed(self._kept):
            if len(recent) >= 2 and reading.at_unix_s < since_s:
                break
            recent.append(reading)
        return recent[::-1]


def _prefix_hits(recent: list[LoadReading]) -> float | None:
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    hits = _grown(first.prefix_hits, last.prefix_hits)
    asked = _grown(first.prefix_queries, last.prefix_queries)
    if asked is None and hits is not None:
        # llama.cpp counts prompt tokens without cached ones: both together were asked for.
        computed = _grown(first.prompt_tokens, last.prompt_tokens)
        asked = None if computed is None else computed + hits
    return hits / asked if hits is not None and asked else None


def _step_s(recent: list[LoadReading]) -> float | None:
    """The mean time of a step while the engine had requests at both readings."""
    took_s = made = 0.0
    for one, other in pairwise(recent):
        steps = _grown(one.steps, other.steps)
        if steps is not None and one.running and other.running:
            took_s += other.at_unix_s - one.at_unix_s
            made += steps
    return took_s / made if made else None


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
