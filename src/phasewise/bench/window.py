"""Which part of a run counts: from the end of its warm-up to its last arrival.

While an engine fills up, its first requests find it empty; once nothing more arrives, its last ones find it
emptying. How the end of the warm-up is found is stationarity.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phasewise.bench.stationarity import WarmUp, later, warm_up
from phasewise.model import latency
from phasewise.model.timeline import Timeline

SHORT_SHARE = 0.5
"""Where arrivals take less than this share of the run, its window lasts until the last reply instead."""


@dataclass(frozen=True, slots=True)
class Window:
    """The counted part of a run, in seconds since its start.

    `warm_up_requests` arrived before it. `judged` says that there were enough requests to look for a warm-up;
    `settled` that what is left is steady, as far as can be told.
    """

    start_s: float
    end_s: float
    warm_up_requests: int
    judged: bool
    settled: bool

    @property
    def length_s(self) -> float:
        """How long it lasted."""
        return self.end_s - self.start_s


def choose_window(
    timelines: Sequence[Timeline], started_unix_s: float, warm_up_requests: int | None = None
) -> Window:
    """The part that counts of requests in the order of their arrival; None looks for the warm-up's end."""
    found = _warm_up(timelines)
    cut = found.cut if warm_up_requests is None else min(warm_up_requests, len(timelines))
    arrivals_s = [timeline.started_unix_s - started_unix_s for timeline in timelines]
    ends_s = [at_s + timeline.ended_s for at_s, timeline in zip(arrivals_s, timelines, strict=True)]
    start_s = arrivals_s[cut] if 0 < cut < len(arrivals_s) else 0.0
    last_arrival_s, last_end_s = max(arrivals_s, default=0.0), max(ends_s, default=0.0)
    brief = last_arrival_s - start_s < SHORT_SHARE * (last_end_s - start_s)
    return Window(start_s, last_end_s if brief else last_arrival_s, cut, found.judged, found.settled)


def _warm_up(timelines: Sequence[Timeline]) -> WarmUp:
    return later(_cut_of(timelines, latency.ttft_s), _cut_of(timelines, latency.tpot_s))


def _cut_of(timelines: Sequence[Timeline], reading: Callable[[Timeline], float | None]) -> WarmUp:
    known = [
        (index, value) for index, timeline in enumerate(timelines) if (value := reading(timeline)) is not None
    ]
    found = warm_up([value for _, value in known])
    cut = known[found.cut][0] if 0 < found.cut < len(known) else 0
    return WarmUp(cut, found.settled, found.judged)
