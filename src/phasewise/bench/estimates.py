"""Readings summed up with their uncertainty: percentiles, each with the interval it is known to.

The resampling is bootstrap.py's, the rule for when a percentile exists statistics.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from phasewise.bench.bootstrap import percentile_interval, pooled_percentile_interval
from phasewise.bench.statistics import Summary, summarise
from phasewise.model.interval import Interval


def estimate(values: Iterable[float | None], rng: np.random.Generator) -> Summary:
    """Sum up one reading per request, in the order of arrival."""
    known = [value for value in values if value is not None]
    return _with_intervals(summarise(known), lambda share: percentile_interval(known, share, rng))


def estimate_pooled(groups: Sequence[Sequence[float]], rng: np.random.Generator) -> Summary:
    """Sum up many readings per request; those of one request are alike and are drawn together."""
    filled = [group for group in groups if group]
    pooled = summarise(value for group in filled for value in group)
    return _with_intervals(pooled, lambda share: pooled_percentile_interval(filled, share, rng))


def _with_intervals(summary: Summary, interval: Callable[[float], Interval | None]) -> Summary:
    return replace(
        summary,
        p50_interval=_bounds(summary.p50, interval(0.5)),
        p90_interval=_bounds(summary.p90, interval(0.9)),
        p99_interval=_bounds(summary.p99, interval(0.99)),
    )


def _bounds(value: float | None, interval: Interval | None) -> tuple[float, float] | None:
    return None if value is None or interval is None else (interval.low, interval.high)
