"""Percentiles and other summaries of readings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from phasewise.core.statistics import quantile


@dataclass(frozen=True, slots=True)
class Summary:
    """The distribution of readings. A percentile is None where there are too few.

    An interval says where a percentile would likely lie in a repeated run; None where it was not computed,
    or where the readings are too few to bound it.
    """

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    p50_interval: tuple[float, float] | None = None
    p90_interval: tuple[float, float] | None = None
    p99_interval: tuple[float, float] | None = None


def summarise(values: Iterable[float | None]) -> Summary:
    """Summarise readings; undefined ones (None) are left out."""
    ordered = sorted(value for value in values if value is not None)
    return Summary(
        count=len(ordered),
        mean=sum(ordered) / len(ordered) if ordered else None,
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1] if ordered else None,
    )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the readings lie.

    A 99th percentile of fewer than 100 readings would be the largest reading, so it is None.
    """
    if len(ordered) < readings_needed(share):
        return None
    return quantile(ordered, share)


def readings_needed(share: float) -> int:
    """How many readings a percentile needs to differ from the extreme; a median needs one."""
    if share <= 0.5:
        return 1
    return ceil(round(1 / (1 - share), 6)) if share < 1 else 1
