"""Which part of a run counts: from the end of its warm-up to its last arrival.

At first the engine is still filling up; after the last arrival it is emptying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.statistics.stationarity import WarmUp, later, warm_up
from phasewise.benchmark.statistics.summary import Summary, summarise
from phasewise.core import latency
from phasewise.core.timeline import Part, Timeline
from phasewise.core.units import duration

SHORT_SHARE = 0.5
"""Where arrivals take less than this share of the run, its window lasts until the last reply instead."""


@dataclass(frozen=True, slots=True)
class Window:
    """The counted part of a run, in seconds since its start.

    `warm_up_requests` arrived before it. `judged` says that there were enough requests to look for a warm-up;
    `settled` that the rest is steady, as far as readings show.
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
    """The counted part of a run, given its requests in arrival order; None finds the end of the warm-up."""
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


# --- Whether a run measured the server or its own generator.
#
# A generator that sends late, or reads chunks late, adds its own delay to every figure. Where that delay
# could show in a figure, the run is void, and says why.

TOLERATED = {"p50": (0.05, 0.002), "p90": (0.05, 0.002), "p99": (0.10, 0.005), "max": (0.50, 0.1)}
"""How much delay a generator may add to a figure: a share of the figure at the same percentile, or a time
that is too short to matter. In the far tail of a few hundred readings single hiccups dominate, so more is
allowed there, but never most of the figure."""
TOLERATED_OF_LOOP = {"p50": (0.05, 0.002), "p90": (0.10, 0.003), "p99": (0.20, 0.010)}
"""The same for the event loop's lag, which lengthens one gap and shortens the next, and so shows less in a
percentile. Its longest lag may not have delayed any chunk."""

Tolerance = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How late the generator sent, how late it read what arrived, and how many requests it held back."""

    send_lag_s: Summary
    loop_lag_s: Summary
    held_back: int = 0


def punctuality(run: BenchRun, timelines: Iterable[Timeline]) -> Punctuality:
    """How punctual the generator was when it sent these requests."""
    send_lags_s = (
        span.duration_s for timeline in timelines for span in timeline.spans if span.part is Part.CLIENT_LAG
    )
    return Punctuality(summarise(send_lags_s), summarise(run.health.loop_lags_s), run.health.held_back)


def void_reasons(kept: Punctuality, ttft_s: Summary, itl_s: Summary) -> tuple[str, ...]:
    """Why the run is void, in words; empty if it is not."""
    reasons = []
    if kept.held_back:
        reasons.append(
            f"{kept.held_back} requests were held back at the generator's limit of open requests; "
            "lower the rate, or split the load over several generators"
        )
    shown = (
        _shown("requests were sent late", kept.send_lag_s, "a TTFT", ttft_s, TOLERATED)
        or _shown("chunks were stamped late", kept.loop_lag_s, "an ITL", itl_s, TOLERATED_OF_LOOP)
        or _shown("first chunks were stamped late", kept.loop_lag_s, "a TTFT", ttft_s, TOLERATED_OF_LOOP)
    )
    return (*reasons, shown) if shown else tuple(reasons)


def _shown(what: str, lag: Summary, of_what: str, figure: Summary, tolerated: Tolerance) -> str:
    """At which percentile a lag would show in a figure, in words; empty if it would not."""
    for name, (share, floor_s) in tolerated.items():
        lag_s, figure_s = getattr(lag, name), getattr(figure, name)
        if lag_s is not None and figure_s is not None and lag_s > max(share * figure_s, floor_s):
            return (
                f"{what}: {duration(lag_s)} at {name}, of {of_what} of {duration(figure_s)}; lower "
                "the rate, or give the generator a core of its own"
            )
    return ""
