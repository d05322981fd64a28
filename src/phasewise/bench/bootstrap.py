"""How far a percentile or a share would move if the run were repeated: confidence intervals by resampling.

Requests near in time share a queue and a batch, so they are drawn in blocks of neighbours: intervals that
take every request for independent are too narrow. Which percentiles to print is left to statistics.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cbrt, ceil, log, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from phasewise.bench.student import t_quantile
from phasewise.model.interval import Interval

FEWEST_BLOCKS = 6
"""With fewer blocks than a median needs readings, the blocks themselves would be too small a sample."""
CELLS_AT_ONCE = 2_000_000
"""Resamples are worked through in slices of about this many numbers, to bound memory on long runs."""


def percentile_interval(
    values: Sequence[float],
    share: float,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
) -> Interval | None:
    """The interval of a percentile over one reading per request, in arrival order; None from too few."""
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

    One request's gaps are anything but independent, so whole requests are drawn. A hundred thousand gaps of
    five requests therefore give no interval: the requests must be enough for a median, too.
    """
    enough_values = sum(len(group) for group in groups) >= values_needed(share, confidence)
    enough_groups = sum(1 for group in groups if len(group)) >= values_needed(0.5, confidence)
    if not (enough_values and enough_groups):
        return None
    return _interval(ResampledPool(groups), share, rng, confidence, resamples)


def share_interval(hits: int, total: int, confidence: float = 0.95) -> Interval | None:
    """Wilson's interval of a share such as goodput; it stays within 0 and 1 and is not empty at either end.

    It takes requests for independent. Misses that come in bursts make the true interval wider.
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

    With fewer, even the largest reading lies below the percentile more often than the interval may err, and
    no resampling of the same readings can reach beyond the largest.
    """
    rarer = max(share, 1 - share)
    if rarer >= 1:
        raise ValueError(f"the {share:.0%} percentile is an extreme: no sample bounds it")
    return ceil(log((1 - confidence) / 2) / log(rarer) - 1e-9)


def block_length(count: int) -> int:
    """How many neighbours are drawn together: twice the cube root, but never fewer than six blocks.

    The cube root is the rate at which the best length grows. Twice that holds what requests share while a
    queue drains, at the price of fewer blocks, which `_tail` makes up for.
    """
    return max(1, min(round(2 * cbrt(count)), count // FEWEST_BLOCKS))


def circular_block_draws(count: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How often each of `count` items in a row is drawn, one row per resample of as many items.

    Blocks may start anywhere and run on from the last item to the first, so every item is drawn alike often.
    """
    length = block_length(count)
    starts = rng.integers(count, size=(resamples, ceil(count / length)))
    drawn = (starts[:, :, None] + np.arange(length)) % count
    return count_draws(drawn.reshape(resamples, -1)[:, :count], count)


def count_draws(drawn: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Turn each row of drawn item numbers into how often each of `count` items was drawn."""
    rows = drawn.shape[0]
    flat = drawn + np.arange(rows)[:, None] * count
    counts: NDArray[np.int64] = np.bincount(flat.ravel(), minlength=rows * count).reshape(rows, count)
    return counts


class ResampledPool:
    """All readings of all groups, sorted once; a resample is then no more than a weight per group.

    Sorting every resample anew would cost minutes where gaps are many. Instead the sorted readings are cut
    into slices, and how many readings each group has in each slice is counted once: one matrix product tells
    every resample the slice its percentile lies in, and only that slice is looked through.
    """

    def __init__(self, groups: Sequence[Sequence[float]]) -> None:
        sizes = [len(group) for group in groups]
        values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
        owners = np.repeat(np.arange(len(groups)), sizes)
        order = np.argsort(values, kind="stable")
        self._sizes = np.asarray(sizes, dtype=np.int64)
        self._values = values[order]
        self._owners = owners[order]
        # The product costs groups * slices, the look through one slice values / slices: this balances them.
        slices = max(1, round(2 * sqrt(len(values) / len(groups))))
        self._width = ceil(len(values) / slices)
        slice_of = np.arange(len(values)) // self._width
        self._slices = int(slice_of[-1]) + 1
        cells = np.bincount(self._owners * self._slices + slice_of, minlength=len(groups) * self._slices)
        self._counts = cells.reshape(len(groups), self._slices).astype(np.float64)

    @property
    def groups(self) -> int:
        """How many groups the readings came in."""
        return len(self._sizes)

    def quantiles(self, draws: NDArray[np.int64], share: float) -> NDArray[np.float64]:
        """The interpolated quantile of each resample; a row says how often each group was drawn.

        A resample that drew no reading at all has none: its quantile is not a number.
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
        """The reading of each resample that so many others precede."""
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

    Few blocks resampled vary less than few blocks measured anew, the more so the fewer they are. Reading the
    resamples further out, where Student's t for so many blocks lies on the normal scale, makes up for it.
    """
    reach = t_quantile((1 + confidence) / 2, blocks - 1) * sqrt(blocks / (blocks - 1))
    return NormalDist().cdf(-reach)
