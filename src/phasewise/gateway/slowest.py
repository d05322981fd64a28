"""Finds the slowest of the timelines that are kept; what slow means is model/latency.py's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from heapq import nlargest

from phasewise.model.latency import e2e_s, tpot_s, ttft_s
from phasewise.model.timeline import Timeline
from phasewise.model.timeline_record import decode

MEASURES: dict[str, Callable[[Timeline], float | None]] = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
LOOKED_AT = 10_000
"""So many of the newest timelines are looked at: all that are kept, unless more are configured."""
DECODED_AT_ONCE = 16
"""Decoding one takes tens of microseconds: so many between two turns of the loop hold up no stream."""


async def slowest(lines: Sequence[bytes], measure: str, limit: int) -> list[bytes]:
    """The slowest of these timelines that have such a time, slowest first."""
    seconds_of = MEASURES[measure]
    timed: list[tuple[float, int]] = []
    for first in range(0, len(lines), DECODED_AT_ONCE):
        for place, line in enumerate(lines[first : first + DECODED_AT_ONCE], first):
            timeline = decode(line)
            seconds = seconds_of(timeline) if timeline.generates else None
            if seconds is not None:
                timed.append((seconds, place))
        await asyncio.sleep(0)
    return [lines[place] for _, place in nlargest(limit, timed)]
