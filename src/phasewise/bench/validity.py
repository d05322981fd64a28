"""Whether a run measured the server, or the generator that was to measure it.

A generator that sends late, or that comes late to the chunks that arrived, adds its own delay to every
figure. Where that delay could be seen in a figure, the run is void, and says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.bench.statistics import Summary

TOLERATED_SHARE = 0.05
"""A generator may add this share to a figure before the figure is no longer the server's,"""
TOLERATED_S = 0.002
"""or this much, which no reader of such figures would miss."""

PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How late the generator sent, how late it came to what arrived, and how many it had to hold back."""

    send_lag_s: Summary
    loop_lag_s: Summary
    held_back: int = 0


def void_reasons(kept: Punctuality, ttft_s: Summary, itl_s: Summary) -> tuple[str, ...]:
    """Why the run does not count, in words; empty where it does."""
    reasons = []
    if kept.held_back:
        reasons.append(
            f"{kept.held_back} requests were held back because as many as this generator opens were open; "
            "lower the rate, or split the load over several generators"
        )
    for name in PERCENTILES:
        lag_s, figure_s = getattr(kept.send_lag_s, name), getattr(ttft_s, name)
        if _shows(lag_s, figure_s):
            reasons.append(
                f"requests were sent late: {lag_s * 1000:.1f} ms at {name}, of a TTFT of "
                f"{figure_s * 1000:.1f} ms; lower the rate, or give the generator a core of its own"
            )
            break
    for name in PERCENTILES:
        lag_s, figure_s = getattr(kept.loop_lag_s, name), getattr(itl_s, name)
        if _shows(lag_s, figure_s):
            reasons.append(
                f"chunks were stamped late: {lag_s * 1000:.1f} ms at {name}, of an ITL of "
                f"{figure_s * 1000:.1f} ms; give the generator a core of its own"
            )
            break
    return tuple(reasons)


def _shows(lag_s: float | None, figure_s: float | None) -> bool:
    return lag_s is not None and figure_s is not None and lag_s > max(TOLERATED_SHARE * figure_s, TOLERATED_S)
