"""Gaps between chunks, grouped by how many requests ran at the time.

The engine's own count is used if its steps were recorded, else the number of streams that this client had
open.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phasewise.core import latency
from phasewise.report.bench.phases import Measured

Floats = npt.NDArray[np.float64]

MAX_GROUPS = 24
"""With more boxes than this, neighbouring counts are merged."""
MIN_GAPS = 10
"""Counts with fewer gaps than this are not drawn."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The gaps that were measured while `low` to `high` requests ran, with their percentiles."""

    low: int
    high: int
    gaps: int
    p10_s: float
    p25_s: float
    p50_s: float
    p75_s: float
    p90_s: float
    p99_s: float | None

    @property
    def name(self) -> str:
        """The counts of running requests that it covers."""
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


def gaps_by_concurrency(measured: Measured) -> tuple[Concurrency, ...]:
    """Every counted gap, by the number of requests that ran at the time.

    Counts with few gaps are left out, unless there are no others.
    """
    ends_s, gaps_s = _gaps(measured)
    if not gaps_s.size:
        return ()
    text = counted_by_engine(measured)
    counts = _engine_counts(measured, ends_s) if text else _client_counts(measured, ends_s - gaps_s / 2)
    width = -(-int(counts.max()) // MAX_GROUPS)
    groups: dict[int, list[float]] = defaultdict(list)
    for count, gap_s in zip(counts.tolist(), gaps_s.tolist(), strict=True):
        groups[max(count - 1, 0) // width].append(gap_s)
    found = [
        _concurrency(group * width + 1, group * width + width, np.array(gaps_s))
        for group, gaps_s in sorted(groups.items())
    ]
    return tuple(concurrency for concurrency in found if concurrency.gaps >= MIN_GAPS) or tuple(found)


def counted_by_engine(measured: Measured) -> bool:
    """Whether the counts are the engine's own."""
    engine = measured.run.engine
    return engine is not None and bool(engine.steps)


def _gaps(measured: Measured) -> tuple[Floats, Floats]:
    ends_s: list[float] = []
    gaps_s: list[float] = []
    for timeline in measured.counted:
        start_s = measured.arrival_s(timeline)
        gaps_s += latency.chunk_gaps_s(timeline)
        ends_s += [start_s + at_s for at_s in timeline.content_times_s[1:]]
    return np.array(ends_s), np.array(gaps_s)


def _client_counts(measured: Measured, at_s: Floats) -> npt.NDArray[np.int64]:
    streams = [
        (measured.arrival_s(timeline), timeline.content_times_s)
        for timeline in measured.run.timelines
        if timeline.content_times_s
    ]
    first_s = np.sort([start_s + times_s[0] for start_s, times_s in streams])
    last_s = np.sort([start_s + times_s[-1] for start_s, times_s in streams])
    return np.searchsorted(first_s, at_s, side="right") - np.searchsorted(last_s, at_s, side="left")


def _engine_counts(measured: Measured, at_s: Floats) -> npt.NDArray[np.int64]:
    """How many requests ran in the step that made a token: the last step that ended before the token arrived.

    A step record counts the requests that remain, so those that ended in the step are added.
    """
    steps = measured.run.engine.steps if measured.run.engine is not None else ()
    ends_s = np.array([step.ended_unix_s - measured.run.started_unix_s for step in steps])
    running = np.array([step.running + len(step.finished) for step in steps])
    latest = np.maximum(np.searchsorted(ends_s, at_s, side="right") - 1, 0)
    counts: npt.NDArray[np.int64] = np.maximum(running, 1)[latest]
    return counts


def _concurrency(low: int, high: int, gaps_s: Floats) -> Concurrency:
    p10, p25, p50, p75, p90 = (float(value) for value in np.percentile(gaps_s, (10, 25, 50, 75, 90)))
    p99 = float(np.percentile(gaps_s, 99)) if gaps_s.size >= 100 else None
    return Concurrency(low, high, int(gaps_s.size), p10, p25, p50, p75, p90, p99)
