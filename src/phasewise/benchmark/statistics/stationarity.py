"""When a run has warmed up, and whether it became steady: earlier readings say nothing about the long run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

BATCH = 5
"""Readings per batch: MSER-5's usual choice, which smooths without hiding the end of the warm-up."""
FEWEST_JUDGED = 40
"""With fewer, half of the run is four batches, and any cut would be chance."""
TREND_BATCHES = (8, 20)
"""The fewest batches that a test at 1% can use, and the most that are still long in long runs."""
LONGEST_WARM_UP = 4
"""If the warm-up is more than one part in this many, too little is left to call the run settled."""
APART = 2.0
"""How many standard errors separate a warm-up from the rest; less is chance in a steady run."""
TREND_LEVEL = 0.01
"""How often the trend test calls a steady run unsettled."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How many readings at the start belong to the warm-up.

    `settled` is False where the rest still drifts, as it does while a queue grows. `judged` is False where
    there were too few readings for either; then nothing is cut.
    """

    cut: int
    settled: bool
    judged: bool


def warm_up(values: Sequence[float]) -> WarmUp:
    """Find the warm-up of one series of readings in arrival order.

    The cut is the one after which the mean is known best (MSER): leaving out readings that differ from the
    rest makes the mean's standard error smaller, leaving out similar ones makes it larger. It is computed on
    ranks, because in the plain variance of latencies one slow request outweighs a whole warm-up. The start of
    a growing queue is cut off like a warm-up, and the rest grows less visibly: the trend test therefore
    starts at the first quarter, even where the cut lies later.
    """
    if len(values) < FEWEST_JUDGED:
        return WarmUp(cut=0, settled=True, judged=False)
    scores = ranks(values)
    batches = batch_means(scores, len(scores) // BATCH)
    furthest = len(batches) // 2
    best = int(np.argmin([_squared_error_of_mean(batches[cut:]) for cut in range(furthest + 1)]))
    if best and not _stands_apart(batches[:best], batches[best:]):
        best = 0
    cut = best * BATCH
    drifts = has_trend(scores[min(cut, len(scores) // LONGEST_WARM_UP) :])
    return WarmUp(cut=cut, settled=best < furthest and not drifts, judged=True)


def later(first: WarmUp, second: WarmUp) -> WarmUp:
    """The result for two series of the same requests: the later cut, and settled only if both are."""
    return WarmUp(
        cut=max(first.cut, second.cut),
        settled=first.settled and second.settled,
        judged=first.judged and second.judged,
    )


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Each reading's rank, from 1; equal readings share their mean rank."""
    _, where, counts = np.unique(
        np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True
    )
    places: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[where.reshape(-1)]
    return places


def batch_means(scores: NDArray[np.float64], batches: int) -> NDArray[np.float64]:
    """The means of so many batches of neighbours, of nearly equal size."""
    return np.asarray([part.mean() for part in np.array_split(scores, batches)])


def has_trend(scores: NDArray[np.float64], level: float = TREND_LEVEL) -> bool:
    """Whether a series rises or falls throughout, by the Mann-Kendall test on batch means.

    Neighbouring readings correlate without any trend, and more so under load, so the batches are few and
    long: longer batches correlate less.
    """
    means = batch_means(scores, max(TREND_BATCHES[0], min(len(scores) // BATCH, TREND_BATCHES[1])))
    count = len(means)
    rising = float(np.sign(means[None, :] - means[:, None])[np.triu_indices(count, 1)].sum())
    spread = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    z = max(0.0, abs(rising) - 1) / spread
    return 2 * (1 - NormalDist().cdf(z)) < level


def _squared_error_of_mean(rest: NDArray[np.float64]) -> float:
    """Divided by one less than the batches, because short remainders would win by chance otherwise."""
    return _squares(rest) / (len(rest) * (len(rest) - 1))


def _stands_apart(start: NDArray[np.float64], rest: NDArray[np.float64]) -> bool:
    variance = (_squares(start) + _squares(rest)) / (len(start) + len(rest) - 2)
    error = sqrt(variance * (1 / len(start) + 1 / len(rest)))
    return abs(float(start.mean() - rest.mean())) > APART * error


def _squares(batches: NDArray[np.float64]) -> float:
    return float(((batches - batches.mean()) ** 2).sum())
