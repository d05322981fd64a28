"""Quantiles by linear interpolation, and confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; the sequence must not be empty."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


# --- Quantiles of waits of which some have not ended.
#
# A request that was aborted or is still open waited at least that long (a censored value).

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class WaitQuantile:
    """A quantile of waits; with `at_least` it is a lower bound, because too many were not answered."""

    seconds: float
    at_least: bool


def wait_quantile(answered_s: Sequence[float], silent_s: Sequence[float], share: float) -> WaitQuantile:
    """The wait that `share` of all requests stay below; one of both sequences must not be empty.

    By Kaplan and Meier: an unanswered request counts as waiting until it ended, and afterwards like those
    that still waited. If too few were answered, the quantile lies beyond the longest observed wait.
    """
    if not silent_s:
        return WaitQuantile(quantile(answered_s, share), at_least=False)
    waiting = len(answered_s) + len(silent_s)
    unanswered_share = 1.0
    # At equal times, answered requests come first: the others still waited then.
    ends = [(wait_s, False) for wait_s in answered_s] + [(wait_s, True) for wait_s in silent_s]
    for wait_s, silent in sorted(ends):
        if not silent:
            unanswered_share *= 1.0 - 1.0 / waiting
            if 1.0 - unanswered_share >= share - _ROUNDING:
                return WaitQuantile(wait_s, at_least=False)
        waiting -= 1
    return WaitQuantile(max([*answered_s, *silent_s]), at_least=True)


# --- A range with its confidence.


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds the true value in `confidence` of all repetitions."""

    low: float
    high: float
    confidence: float
