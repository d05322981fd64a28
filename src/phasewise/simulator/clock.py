"""Virtual time: what happens when, in an order that is the same in every run."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class VirtualClock:
    """Events in the order of their times; those of the same time in the order in which they were planned."""

    __slots__ = ("_events", "_planned", "background", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.background = 0
        """Events that repeat for ever: when only they are left, nothing more happens."""
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, when_s: float, act: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        """Call something at that time."""
        heappush(self._events, (when_s, self._planned, act, arguments))
        self._planned += 1

    def run(self, until_s: float = inf) -> None:
        """Until nothing is left to happen up to that time."""
        events = self._events
        while len(events) > self.background and events[0][0] <= until_s:
            self.now_s, _, act, arguments = heappop(events)
            act(*arguments)
        if until_s < inf:
            self.now_s = max(self.now_s, until_s)
