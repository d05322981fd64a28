"""Whether readings jumped to another level on the way, and where.

What happened then, such as a worker that left or a cache that filled, is left to the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cbrt, ceil

import numpy as np
from numpy.typing import NDArray

from phasewise.bench.stationarity import ranks

FEWEST_BATCHES = 8
"""Fewer batches have too few orders among which one could stand out at 1%."""
FEWEST_A_SIDE = 5
"""A level is not seen in fewer readings than this."""
PERMUTATIONS = 999


@dataclass(frozen=True, slots=True)
class Change:
    """Readings from `index` on lie on another level; `before` and `after` are the medians of both sides."""

    index: int
    before: float
    after: float


def find_change(values: Sequence[float], rng: np.random.Generator, *, alpha: float = 0.01) -> Change | None:
    """Find the most likely jump of level in arrival order; None where chance explains the readings as well.

    Chance is what the same readings show when batches of neighbours are put in another order: the batches
    keep what neighbours share, so a slow stretch of a busy engine is not taken for a jump. Ranks stand for
    the readings, so one stalled request is not taken for one either.
    """
    count = len(values)
    batch = max(1, min(ceil(2 * cbrt(count)), count // FEWEST_BATCHES))
    if count < FEWEST_BATCHES or count < 2 * FEWEST_A_SIDE:
        return None
    scores = ranks(values)
    seen = _contrast(scores)
    # One at a time: all of them at once would take hundreds of megabytes of a long run's readings.
    as_strong = sum(
        bool(_contrast(scores[_order(count, batch, rng)]).max() >= seen.max()) for _ in range(PERMUTATIONS)
    )
    if (as_strong + 1) / (PERMUTATIONS + 1) > alpha:
        return None
    index = FEWEST_A_SIDE + int(np.argmax(seen))
    return Change(index, before=float(np.median(values[:index])), after=float(np.median(values[index:])))


def _contrast(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far apart the mean ranks of both sides lie at every cut, by what chance would do at that cut."""
    count = len(scores)
    cuts = np.arange(FEWEST_A_SIDE, count - FEWEST_A_SIDE + 1)
    sums = np.cumsum(scores - scores.mean())[cuts - 1]
    contrast: NDArray[np.float64] = np.abs(sums) / np.sqrt(cuts * (count - cuts))
    return contrast


def _order(count: int, batch: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """All places once, whole batches at a time; where the first batch starts is drawn, too."""
    turned = np.roll(np.arange(count), -int(rng.integers(batch)))
    parts = np.array_split(turned, ceil(count / batch))
    return np.concatenate([parts[at] for at in rng.permutation(len(parts))])
