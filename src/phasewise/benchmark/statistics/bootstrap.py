"""Confidence intervals by resampling: how far a percentile or a share would move in a repeated run.

Requests near in time share a queue and a batch, so they are drawn in blocks of neighbours: intervals that
treat requests as independent are too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import cbrt, ceil, cos, log, pi, sin, sqrt, tan
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from phasewise.benchmark.statistics.summary import Summary, summarise
from phasewise.core.statistics import Interval

# --- Quantiles of Student's t, for intervals from a handful of pairs.

HALVINGS = 200
"""More than a double's precision needs: the bisection ends when its bracket cannot be halved again."""


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """The value that Student's t with so many degrees of freedom stays below with this probability.

    The angle atan(t / sqrt(degrees)) is bounded, so the bisection runs over it and needs no first guess.
    """
    if degrees < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {degrees}")
    if not 0 < probability < 1:
        raise ValueError(f"a probability must be between 0 and 1, not {probability}")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    wanted = 2 * probability - 1
    low, high = 0.0, pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _within(middle, degrees) < wanted:
            low = middle
        else:
            high = middle
    return sqrt(degrees) * tan(low) if low else 0.0


def _within(angle: float, degrees: int) -> float:
    """The probability that |t| stays below sqrt(degrees) * tan(angle).

    For whole degrees the integral of the density is a finite sum in the angle's sine and cosine, one for odd
    and one for even degrees, so it is exact.
    """
    sine, cosine = sin(angle), cos(angle)
    odd = degrees % 2
    if degrees == 1:
        return 2 * angle / pi
    term = cosine if odd else 1.0
    total = term
    for step in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    return 2 / pi * (angle + sine * total) if odd else sine * total


FEWEST_BLOCKS = 6
"""With fewer blocks than a median needs readings, the blocks would be too small a sample."""
CELLS_AT_ONCE = 2_000_000
"""Resamples are processed in slices of about this many numbers, to bound memory in long runs."""


def percentile_interval(
    values: Sequence[float],
    share: float,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
) -> Interval | None:
    """The interval of a percentile over one reading per request, in arrival order; None if too few."""
    if len(values) < values_needed(share, confidence):
        return None
    return _interval(ResampledPool([[value] for value in values]), share, rng, confidence, resamples)


def pooled_percentile_interval(
    groups: Sequence[Sequence[float]],
    share: float,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
) -> Interval | None:
    """The interval of a percentile over all readings of all requests, such as the gaps between tokens.

    One request's gaps are not independent, so whole requests are drawn. A hundred thousand gaps of five
    requests therefore give no interval: there must be enough requests for a median, too.
    """
    enough_values = sum(len(group) for group in groups) >= values_needed(share, confidence)
    enough_groups = sum(1 for group in groups if len(group)) >= values_needed(0.5, confidence)
    if not (enough_values and enough_groups):
        return None
    return _interval(ResampledPool(groups), share, rng, confidence, resamples)


def share_interval(hits: int, total: int, confidence: float = 0.95) -> Interval | None:
    """Wilson's interval of a share such as goodput; it stays within 0 and 1 and is not empty at either end.

    It treats requests as independent. Misses in bursts make the true interval wider.
    """
    if total == 0:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = hits / total
    shrink = 1 + z * z / total
    middle = (share + z * z / (2 * total)) / shrink
    reach = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / shrink
    low = 0.0 if hits == 0 else max(0.0, middle - reach)
    high = 1.0 if hits == total else min(1.0, middle + reach)
    return Interval(low, high, confidence)


def values_needed(share: float, confidence: float) -> int:
    """How many independent readings a percentile's interval needs: 6 for p50 at 95%, 36 for p90, 368 for p99.

    With fewer, even the largest reading lies below the percentile more often than the interval's error
    allows, and no resample reaches beyond the largest reading.
    """
    rarer = max(share, 1 - share)
    if rarer >= 1:
        raise ValueError(f"the {share:.0%} percentile is an extreme: no sample bounds it")
    return ceil(log((1 - confidence) / 2) / log(rarer) - 1e-9)


def block_length(count: int) -> int:
    """How many neighbours are drawn together: twice the cube root, but at least six blocks.

    The best length grows with the cube root. Twice that covers what requests share while a queue drains, but
    gives fewer blocks, which `_tail` corrects for.
    """
    return max(1, min(round(2 * cbrt(count)), count // FEWEST_BLOCKS))


def circular_block_draws(count: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How often each of `count` items in a row is drawn, one row per resample of as many items.

    Blocks may start anywhere and wrap around, so every item is drawn equally often.
    """
    length = block_length(count)
    starts = rng.integers(count, size=(resamples, ceil(count / length)))
    drawn = (starts[:, :, None] + np.arange(length)) % count
    return count_draws(drawn.reshape(resamples, -1)[:, :count], count)


def count_draws(drawn: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """How often each of `count` items was drawn, from each row of drawn item numbers."""
    rows = drawn.shape[0]
    flat = drawn + np.arange(rows)[:, None] * count
    counts: NDArray[np.int64] = np.bincount(flat.ravel(), minlength=rows * count).reshape(rows, count)
    return counts


class ResampledPool:
    """All readings of all groups, sorted once, so that a resample is only a weight per group.

    Sorting every resample would take minutes where there are many gaps. Instead the sorted readings are cut
    into slices, and the readings of each group in each slice are counted once: one matrix product finds the
    slice of every resample's percentile, and only that slice is searched.
    """

    def __init__(self, groups: Sequence[Sequence[float]]) -> None:
        sizes = [len(group) for group in groups]
        values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
        owners = np.repeat(np.arange(len(groups)), sizes)
        order = np.argsort(values, kind="stable")
        self._sizes = np.asarray(sizes, dtype=np.int64)
        self._values = values[order]
        self._owners = owners[order]
        # The product costs groups * slices, the search in one slice values / slices: this balances them.
        slices = max(1, round(2 * sqrt(len(values) / len(groups))))
        self._width = ceil(len(values) / slices)
        slice_of = np.arange(len(values)) // self._width
        self._slices = int(slice_of[-1]) + 1
        cells = np.bincount(self._owners * self._slices + slice_of, minlength=len(groups) * self._slices)
        self._counts = cells.reshape(len(groups), self._slices).astype(np.float64)

    @property
    def groups(self) -> int:
        """How many groups of readings there are."""
        return len(self._sizes)

    def quantiles(self, draws: NDArray[np.int64], share: float) -> NDArray[np.float64]:
        """The interpolated quantile of each resample; a row says how often each group was drawn.

        The quantile of a resample without readings is NaN.
        """
        rows = max(1, CELLS_AT_ONCE // max(self._width, draws.shape[1]))
        parts = [self._some(draws[start : start + rows], share) for start in range(0, len(draws), rows)]
        return np.concatenate(parts)

    def _some(self, draws: NDArray[np.int64], share: float) -> NDArray[np.float64]:
        position = np.maximum(share * (draws @ self._sizes - 1), 0.0)
        below = np.floor(position).astype(np.int64)
        up_to = np.cumsum(np.rint(draws @ self._counts).astype(np.int64), axis=1)
        empty = up_to[:, -1] == 0
        at = self._at_rank(draws, up_to, below)
        above = self._at_rank(draws, up_to, np.minimum(below + 1, np.maximum(up_to[:, -1] - 1, 0)))
        result: NDArray[np.float64] = np.where(empty, np.nan, at + (above - at) * (position - below))
        return result

    def _at_rank(
        self, draws: NDArray[np.int64], up_to: NDArray[np.int64], rank: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The reading of each resample at this rank."""
        slice_at = np.minimum((up_to <= rank[:, None]).sum(axis=1), self._slices - 1)
        before = np.where(slice_at > 0, up_to[np.arange(len(draws)), slice_at - 1], 0)
        cells = np.minimum(slice_at[:, None] * self._width + np.arange(self._width), len(self._values) - 1)
        weights = np.take_along_axis(draws, self._owners[cells], axis=1)
        passed = (np.cumsum(weights, axis=1) <= (rank - before)[:, None]).sum(axis=1)
        found: NDArray[np.float64] = self._values[
            cells[np.arange(len(draws)), np.minimum(passed, self._width - 1)]
        ]
        return found


def _interval(
    pool: ResampledPool, share: float, rng: np.random.Generator, confidence: float, resamples: int
) -> Interval:
    draws = circular_block_draws(pool.groups, resamples, rng)
    tail = _tail(pool.groups // block_length(pool.groups), confidence)
    low, high = np.nanquantile(pool.quantiles(draws, share), [tail, 1 - tail])
    return Interval(float(low), float(high), confidence)


def _tail(blocks: int, confidence: float) -> float:
    """The share of resamples to leave out at either end.

    Resamples of few blocks vary less than new measurements of as many blocks would. To correct for this, the
    tails are set by Student's t for so many blocks, on the normal scale.
    """
    reach = t_quantile((1 + confidence) / 2, blocks - 1) * sqrt(blocks / (blocks - 1))
    return NormalDist().cdf(-reach)


# --- Summaries with their uncertainty: percentiles, each with its interval.


def estimate(values: Iterable[float | None], rng: np.random.Generator) -> Summary:
    """Summarise one reading per request, in arrival order."""
    known = [value for value in values if value is not None]
    return _with_intervals(summarise(known), lambda share: percentile_interval(known, share, rng))


def estimate_pooled(groups: Sequence[Sequence[float]], rng: np.random.Generator) -> Summary:
    """Summarise many readings per request; those of one request correlate and are drawn together."""
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
