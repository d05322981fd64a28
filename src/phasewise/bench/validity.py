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
LOOP_SHARE = 0.2
"""Chunks may be stamped this share of a usual gap late: gaps are longer and shorter by it in turn."""


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
    for name in ("p50", "p90", "p99"):
        lag_s, figure_s = getattr(kept.send_lag_s, name), getattr(ttft_s, name)
        if lag_s is not None and figure_s is not None and lag_s > _tolerated(figure_s, TOLERATED_SHARE):
            reasons.append(
                f"requests were sent late: {lag_s * 1000:.1f} ms at {name}, of a TTFT of "
                f"{figure_s * 1000:.1f} ms; lower the rate, or give the generator a core of its own"
            )
            break
    loop_lag_s = kept.loop_lag_s.p99
    if loop_lag_s is not None and itl_s.p50 is not None and loop_lag_s > _tolerated(itl_s.p50, LOOP_SHARE):
        reasons.append(
            f"chunks were stamped up to {loop_lag_s * 1000:.1f} ms late (p99), of a usual gap of "
            f"{itl_s.p50 * 1000:.1f} ms; give the generator a core of its own"
        )
    return tuple(reasons)


def _tolerated(figure_s: float, share: float) -> float:
    return max(share * figure_s, TOLERATED_S)
