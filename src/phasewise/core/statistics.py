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


# --- A range with its confidence.


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds the true value in `confidence` of all repetitions."""

    low: float
    high: float
    confidence: float
