"""Whether a run was steady: when it had warmed up, whether it drifted, and whether its level jumped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cbrt, sqrt
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


# --- Whether readings jumped to another level during a run, and where.

FEWEST_IN_SERIES = 20
"""Fewer readings do not show how much neighbours correlate."""
MOST_JUDGED = 500
"""Longer series are tested by the means of this many batches; the jump is located in the full series."""
FEWEST_A_SIDE = 5
"""The fewest readings that make a level."""
FALSE_ALARMS = 0.005
"""A jump counts where at most this share of steady series have one as clear."""
SIMULATIONS = 1999
SIMULATED_AT_ONCE = 400
SMALLEST_LONG_RUN = 0.1
"""Alternating readings seem to have almost no long-run variance; smaller values are not plausible."""
MOST_ALIKE = 0.98
"""Readings that correlate more than this wander over a whole run, and every such run seems to jump."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    """Readings from `index` on are at another level; `before` and `after` are the medians of both sides."""

    index: int
    before: float
    after: float


def find_change(values: Sequence[float], rng: np.random.Generator) -> LevelChange | None:
    """Find the most likely level change in arrival order; None where chance explains the readings as well.

    Chance means a steady series in which neighbours correlate as much as here on both sides of the jump, and
    a little more, because few readings underestimate it. Such series are simulated and searched for their
    own best jump. The test uses ranks, so one stalled request does not look like a jump.

    Of steady series of 100 to 1000 readings about 1 in 100 raises a false alarm where neighbours correlate by
    up to 0.8, and 2 or 3 where they correlate by 0.95. A queue that lasts for much of the run looks like a
    level of its own: one server at 80% load raises 6 to 8. The price is power: a doubling is found in nearly
    every run of 200 readings with a spread of half their level, unless neighbours correlate strongly; in a
    run of 100, with a spread of a quarter.
    """
    if len(values) < FEWEST_IN_SERIES:
        return None
    scores = ranks(values)
    judged = scores if len(scores) <= MOST_JUDGED else ranks(batch_means(scores, MOST_JUDGED).tolist())
    if not _stands_out(judged, rng):
        return None
    index = int(_best_cuts(scores[None, :])[0][0])
    return LevelChange(index, before=float(np.median(values[:index])), after=float(np.median(values[index:])))


def _stands_out(scores: NDArray[np.float64], rng: np.random.Generator) -> bool:
    """Whether at most a share of `FALSE_ALARMS` of steady series have as clear a jump; stops once more do."""
    if scores.min() == scores.max():
        return False
    count = len(scores)
    seen, alike = _jump(scores[None, :])
    allowed = FALSE_ALARMS * (SIMULATIONS + 1)
    as_clear, left = 1, SIMULATIONS
    while left and as_clear <= allowed:
        size = min(left, SIMULATED_AT_ONCE)
        steady = _steady(count, size, _cautious(float(alike[0]), count), rng)
        as_clear += int((_jump(steady)[0] >= seen[0]).sum())
        left -= size
    return as_clear <= allowed


def _jump(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How clear each row's best jump is, and how much neighbours correlate on both sides of it.

    The contrast is divided by the long-run deviation of sums of such neighbours, with Bartlett's weights.
    """
    cuts, contrast = _best_cuts(scores)
    rest = _without_jump(scores, cuts)
    count = scores.shape[1]
    window = _window(count)
    variance = np.maximum((rest**2).mean(axis=1), 1e-9)
    shared = [(rest[:, :-lag] * rest[:, lag:]).sum(axis=1) / count for lag in range(1, window)]
    weighted = sum((2 * (1 - lag / window) * part for lag, part in enumerate(shared, 1)), variance)
    long_run = np.maximum(weighted / variance, SMALLEST_LONG_RUN)
    alike = np.maximum(shared[0] / variance, _alike_by_long_run(long_run, window))
    return contrast / np.sqrt(long_run * variance), alike


def _best_cuts(scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Where the mean ranks of both sides differ most, relative to chance at that cut; and by how much."""
    count = scores.shape[1]
    cuts = np.arange(FEWEST_A_SIDE, count - FEWEST_A_SIDE + 1)
    sums = np.cumsum(scores - scores.mean(axis=1, keepdims=True), axis=1)[:, cuts - 1]
    contrast = np.abs(sums) / np.sqrt(cuts * (count - cuts))
    return cuts[contrast.argmax(axis=1)], contrast.max(axis=1)


def _without_jump(scores: NDArray[np.float64], cuts: NDArray[np.int64]) -> NDArray[np.float64]:
    count = scores.shape[1]
    first = np.arange(count) < cuts[:, None]
    before = np.where(first, scores, 0.0).sum(axis=1) / cuts
    after = np.where(first, 0.0, scores).sum(axis=1) / (count - cuts)
    rest: NDArray[np.float64] = scores - np.where(first, before[:, None], after[:, None])
    return rest


def _window(count: int) -> int:
    return round(2 * cbrt(count))


def _alike_by_long_run(long_run: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The correlation of neighbours that gives sums this long-run variance.

    It is more than neighbours show where each reading has a part of its own, such as its prompt's length, on
    top of a queue that changes slowly.
    """
    grid = np.linspace(0.0, MOST_ALIKE, 99)
    lags = np.arange(1, window)
    spreads = 1 + 2 * ((1 - lags / window) * grid[:, None] ** lags).sum(axis=1)
    return np.interp(long_run, spreads, grid)


def _cautious(alike: float, count: int) -> float:
    """An upper estimate of the correlation: removing two levels hides some of it, and chance a bit more."""
    seen = max(0.0, min(alike, MOST_ALIKE))
    return min(MOST_ALIKE, seen + 2 * (1 + 3 * seen) / count + sqrt((1 - seen**2) / count))


def _steady(count: int, rows: int, alike: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Ranks of series without a jump, in which neighbours correlate this much."""
    noise = rng.standard_normal((count, rows))
    noise[1:] *= sqrt(1 - alike**2)
    for at in range(1, count):
        noise[at] += alike * noise[at - 1]
    places: NDArray[np.float64] = noise.T.argsort(axis=1).argsort(axis=1).astype(np.float64) + 1
    return places
