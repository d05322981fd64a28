"""Requests that are still open when a window closes, from how many an engine had over time.

Neither step records nor counters name a request before it ends, and none of them has its wait until then. But
requests wait in the order of their arrival, so those that wait now are the latest that came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class InEngine:
    """How many requests an engine has at one moment, and how many have ended since the first such moment."""

    at_unix_s: float
    waiting: int
    running: int
    ended: float

    @property
    def came(self) -> float:
        """How many have come so far, with those that were there at first."""
        return self.waiting + self.running + self.ended


def arrivals(moments: Iterable[InEngine]) -> tuple[float, ...]:
    """When each request came, the oldest first; those that were there at the first moment, at that moment."""
    seen = list(moments)
    if not seen:
        return ()
    came_s = [seen[0].at_unix_s] * (seen[0].waiting + seen[0].running)
    for before, after in pairwise(seen):
        came = max(0, round(after.came - before.came))
        came_s += [(before.at_unix_s + after.at_unix_s) / 2] * came
    return tuple(came_s)


def waiting_since(moments: Sequence[InEngine]) -> tuple[float, ...]:
    """When each request came that waits at the last of these moments, the oldest first."""
    waiting = moments[-1].waiting if moments else 0
    return arrivals(moments)[-waiting:] if waiting else ()
