"""Whether a run measured the server, or the generator that was to measure it.

A generator that sends late, or that comes late to the chunks that arrived, adds its own delay to every
figure. Where that delay could be seen in a figure, the run is void, and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phasewise.bench.run import BenchRun
from phasewise.bench.statistics import Summary, summarise
from phasewise.model.timeline import Part, Timeline

TOLERATED = {"p50": (0.05, 0.002), "p90": (0.05, 0.002), "p99": (0.10, 0.005), "max": (0.50, 0.1)}
"""What a generator may add to a figure before the figure is no longer the server's: a share of the figure at
the same percentile, or a time that no reader of such figures would miss. The far end of a few hundred
readings is a matter of single hiccups, so more is granted there; but not that most of the worst is ours."""
TOLERATED_OF_LOOP = {"p50": (0.05, 0.002), "p90": (0.10, 0.003), "p99": (0.20, 0.010)}
"""The same for the event loop's lag, which lengthens one gap and shortens the next: less of it shows in a
percentile. Its longest lag need not have met a chunk at all."""

Tolerance = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How late the generator sent, how late it came to what arrived, and how many it had to hold back."""

    send_lag_s: Summary
    loop_lag_s: Summary
    held_back: int = 0


def punctuality(run: BenchRun, timelines: Iterable[Timeline]) -> Punctuality:
    """How the generator of a run kept its times, sending these requests."""
    send_lags_s = (
        span.duration_s for timeline in timelines for span in timeline.spans if span.part is Part.CLIENT_LAG
    )
    return Punctuality(summarise(send_lags_s), summarise(run.health.loop_lags_s), run.health.held_back)


def void_reasons(kept: Punctuality, ttft_s: Summary, itl_s: Summary) -> tuple[str, ...]:
    """Why the run does not count, in words; empty where it does."""
    reasons = []
    if kept.held_back:
        reasons.append(
            f"{kept.held_back} requests were held back because as many as this generator opens were open; "
            "lower the rate, or split the load over several generators"
        )
    shown = (
        _shown("requests were sent late", kept.send_lag_s, "a TTFT", ttft_s, TOLERATED)
        or _shown("chunks were stamped late", kept.loop_lag_s, "an ITL", itl_s, TOLERATED_OF_LOOP)
        or _shown("first chunks were stamped late", kept.loop_lag_s, "a TTFT", ttft_s, TOLERATED_OF_LOOP)
    )
    return (*reasons, shown) if shown else tuple(reasons)


def _shown(what: str, lag: Summary, of_what: str, figure: Summary, tolerated: Tolerance) -> str:
    """At which percentile a lag would show in a figure, in words; empty where it would not."""
    for name, (share, floor_s) in tolerated.items():
        lag_s, figure_s = getattr(lag, name), getattr(figure, name)
        if lag_s is not None and figure_s is not None and lag_s > max(share * figure_s, floor_s):
            return (
                f"{what}: {lag_s * 1000:.1f} ms at {name}, of {of_what} of {figure_s * 1000:.1f} ms; lower "
                "the rate, or give the generator a core of its own"
            )
    return ""
