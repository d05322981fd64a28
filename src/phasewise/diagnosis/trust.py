"""Whether a measurement can be trusted: a late generator, a cache that was warm before, a drifting server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from phasewise.diagnosis.prefix_use import warm_share
from phasewise.model.latency import tpot_s, ttft_s
from phasewise.model.quantiles import quantile
from phasewise.model.timeline import Part, Timeline

FEWEST_PER_THIRD = 8
"""With fewer requests in a third, chance can put all of one third above all of another."""
CHANCE_Z = 3.29
"""Ranks of the thirds this many standard errors apart happen by chance once in a thousand windows. Requests
that queue behind each other are alike, so a laxer bar would call bursts a drift."""

LEAST_CHANGE = 0.1
"""A change by less than this changes no verdict, however sure it is."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Whether the measurement itself can be trusted.

    `lag_mean_s` and `lag_p90_s` are how late the load generator sent. `warm_share` is the share of prompt
    tokens that came from the cache though nobody had sent them in this window. `ttft_drift` and `tpot_drift`
    are the median of the last third over that of the first, None where that is chance or next to nothing.
    """

    lag_mean_s: float | None = None
    lag_p90_s: float | None = None
    warm_share: float | None = None
    ttft_drift: float | None = None
    tpot_drift: float | None = None


def trust_of(timelines: Sequence[Timeline], *, are_ours: bool = True) -> Trust:
    """What speaks against taking these timelines at their word.

    Of a load that is not ours nobody knows what was sent before the window: a warm cache is then no wonder.
    """
    lags = [span.duration_s for it in timelines for span in it.spans if span.part is Part.CLIENT_LAG]
    in_order = sorted(timelines, key=lambda it: it.started_unix_s)
    return Trust(
        lag_mean_s=fmean(lags) if lags else None,
        lag_p90_s=quantile(lags, 0.9) if lags else None,
        warm_share=warm_share(timelines) if are_ours else None,
        ttft_drift=drift(_compared_to_their_like(in_order)),
        tpot_drift=drift([value for value in map(tpot_s, in_order) if value is not None]),
    )


def drift(values: Sequence[float]) -> float | None:
    """The median of the last third over that of the first, if their ranks differ by more than chance."""
    third = len(values) // 3
    if third < FEWEST_PER_THIRD:
        return None
    first, last = values[:third], values[-third:]
    before, after = median(first), median(last)
    if before <= 0 or after <= 0 or abs(_rank_z(first, last)) < CHANCE_Z:
        return None
    return after / before if max(after / before, before / after) >= 1.0 + LEAST_CHANGE else None


def _compared_to_their_like(timelines: Sequence[Timeline]) -> list[float]:
    """Each TTFT over the median of prompts as long, so that longer prompts are no drift; in order."""
    groups: dict[int, list[float]] = {}
    for magnitude, first_s in _starts(timelines):
        groups.setdefault(magnitude, []).append(first_s)
    usual = {magnitude: median(values) for magnitude, values in groups.items()}
    return [first_s / usual[magnitude] for magnitude, first_s in _starts(timelines) if usual[magnitude] > 0]


def _starts(timelines: Sequence[Timeline]) -> Iterator[tuple[int, float]]:
    """TTFTs with the magnitude of what had to be computed for them, in powers of two."""
    for timeline in timelines:
        first_s = ttft_s(timeline)
        if first_s is not None:
            uncached = (timeline.prompt_tokens or 0) - (timeline.cached_tokens or 0)
            yield max(0, uncached).bit_length(), first_s


def _rank_z(first: Sequence[float], last: Sequence[float]) -> float:
    """By how many standard errors the ranks of two samples differ (Mann and Whitney), ties shared."""
    values = np.array([*first, *last])
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    n, m = len(first), len(last)
    rank_sum = float(mean_ranks[groups][n:].sum())
    expected = m * (n + m + 1) / 2
    ties = float((counts**3 - counts).sum()) / ((n + m) * (n + m - 1))
    variance = n * m / 12 * (n + m + 1 - ties)
    return (rank_sum - expected) / variance**0.5 if variance > 0 else 0.0
