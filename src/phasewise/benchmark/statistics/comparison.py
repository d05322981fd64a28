"""Whether arm B is better, worse or as good as arm A, from pairs of blocks with the same requests in each.

Both blocks of a pair run back to back, so that slow drift affects both alike. Pairs, not requests, are
independent repetitions, so only pairs are resampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import expm1, isfinite, log1p, sqrt
from statistics import NormalDist
from typing import Self

import numpy as np
from numpy.typing import NDArray

from phasewise.benchmark.statistics.bootstrap import ResampledPool, count_draws, t_quantile
from phasewise.benchmark.statistics.summary import readings_needed
from phasewise.core.statistics import Interval

FEWEST_PAIRS = 4
"""With fewer pairs their spread is a guess, and Student's t at a corrected level is useless."""
FEWEST_EVENTS = 5
"""With fewer hits or misses in an arm, one request dominates the ratio of shares."""
MOST_PAIRS = 10_000
"""A comparison that needs more pairs than this has no practical answer."""
LIKELY = 0.8
"""The probability behind "likely" when the pairs still to run are counted."""
LARGEST_LOG = 700.0
"""Beyond this, the exponential overflows a double."""


class Kind(StrEnum):
    """How a metric is computed from a block's readings."""

    QUANTILE = "quantile"
    """A quantile of readings pooled over blocks, such as latencies."""
    RATE = "rate"
    """A sum divided by a sum, such as tokens per second."""
    SHARE = "share"
    """A count divided by the count it is part of, such as requests within the SLO."""


class Scale(StrEnum):
    """The scale of a change."""

    RELATIVE = "relative"
    """B / A - 1."""
    POINTS = "points"
    """B - A, for shares so close to none or all that their ratio says nothing."""


class MetricVerdict(StrEnum):
    """What the pairs say about one metric."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure that both arms are compared by.

    `decides` is False for figures that are shown but not waited for: a p99 would need endless pairs.
    `censored_at` is the reading that stands for a request without an answer, if there is one: two quantiles
    that both reach it cannot be compared.
    """

    name: str
    label: str
    kind: Kind
    higher_is_better: bool
    share: float = 0.5
    decides: bool = True
    censored_at: float | None = None


@dataclass(frozen=True, slots=True)
class Quotient:
    """A block's part of a rate or a share."""

    numerator: float
    denominator: float


Readings = Sequence[float] | Quotient
Block = Mapping[str, Readings]
"""A block's readings by metric name."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same requests, sent to A and to B, one after the other."""

    a: Block
    b: Block


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for one metric.

    `change` and `interval` are on `scale`; the interval's confidence is corrected for the number of metrics
    that were compared. `standard_error` is the log ratio's where the scale is relative. `more_pairs` says how
    many further pairs would likely decide an inconclusive result if the change stays as it is, None where
    there is no such number. `reason` says why a metric is unknown.
    """

    metric: Metric
    verdict: MetricVerdict
    pairs: int
    scale: Scale = Scale.RELATIVE
    a: float | None = None
    b: float | None = None
    change: float | None = None
    interval: Interval | None = None
    standard_error: float | None = None
    more_pairs: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Control:
    """A compared with itself. `differing` names the metrics in which a pair's two slots differ.

    A difference here comes from the placement or order of blocks.
    """

    comparisons: tuple[Comparison, ...]
    differing: tuple[str, ...]

    @classmethod
    def of(cls, comparisons: tuple[Comparison, ...]) -> Self:
        """The control whose pairs, of A and A, were compared so."""
        unlike = {MetricVerdict.BETTER, MetricVerdict.WORSE}
        return cls(comparisons, tuple(each.metric.name for each in comparisons if each.verdict in unlike))

    @property
    def alike(self) -> bool:
        """Whether a difference between A and B can be attributed to B.

        Any metric can show a difference; only a deciding metric can show likeness.
        """
        known = (
            each.verdict is not MetricVerdict.UNKNOWN for each in self.comparisons if each.metric.decides
        )
        return not self.differing and any(known)


def compare(
    pairs: Sequence[Pair],
    metrics: Sequence[Metric],
    rng: np.random.Generator,
    *,
    family_alpha: float = 0.05,
    margin: float = 0.05,
    resamples: int = 2000,
) -> tuple[Comparison, ...]:
    """Compare both arms by every metric; all intervals together hold with probability 1 - family_alpha.

    The intervals are Student's t around the pooled estimate, with a standard error from resampled pairs.
    Taking them directly from the resamples would not work: eight pairs have a few thousand distinct
    resamples, none beyond the most extreme pair, while a level corrected for eight metrics needs the 3rd in a
    thousand. An interval within the margin is called equivalent even where it excludes zero: the difference
    is known and does not matter.
    """
    rules = _Strictness(alpha=family_alpha / max(1, len(metrics)), margin=margin)
    return tuple(_compare_one(pairs, metric, rng, rules, resamples) for metric in metrics)


def pairs_needed(
    control: Sequence[Comparison], *, margin: float = 0.05, family_alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """After how many pairs equal arms would be called equivalent with this probability.

    Of the deciding metrics, the one with the largest spread determines it. The control's own spread comes
    from few pairs and may be small by luck, so its upper bound is used. None where no metric could be
    measured or the number is impractical.
    """
    rules = _Strictness(alpha=family_alpha / max(1, len(control)), margin=margin)
    z = NormalDist().inv_cdf((1 + power) / 2)
    needed = [
        _pairs_within(
            rules, each.scale, each.standard_error * sqrt(each.pairs) * _upper_factor(each.pairs - 1), z
        )
        for each in control
        if each.metric.decides and each.standard_error is not None
    ]
    known = [count for count in needed if count is not None]
    return max(known) if known and len(known) == len(needed) else None


@dataclass(frozen=True, slots=True)
class _Strictness:
    alpha: float
    margin: float

    def bounds(self, scale: Scale) -> tuple[float, float]:
        """The margin on the scale of the estimate."""
        if scale is Scale.POINTS:
            return -self.margin, self.margin
        return log1p(-self.margin), log1p(self.margin)

    def reach(self, pairs: int, spread: float, extra_z: float = 0.0) -> float:
        """How far the interval of so many pairs reaches, plus how much the estimate may err."""
        return (t_quantile(1 - self.alpha / 2, pairs - 1) + extra_z) * spread / sqrt(pairs)


@dataclass(frozen=True, slots=True)
class _Effect:
    """The estimate on the scale it is computed on: the log ratio, or the difference in points."""

    scale: Scale
    a: float
    b: float
    estimate: float
    standard_error: float


def _compare_one(
    pairs: Sequence[Pair], metric: Metric, rng: np.random.Generator, rules: _Strictness, resamples: int
) -> Comparison:
    used = [
        pair for pair in pairs if _is_there(pair.a.get(metric.name)) and _is_there(pair.b.get(metric.name))
    ]
    if len(used) < FEWEST_PAIRS:
        reason = f"{len(used)} of {len(pairs)} pairs have readings in both arms; {FEWEST_PAIRS} are needed"
        return Comparison(metric, MetricVerdict.UNKNOWN, len(used), reason=reason)
    # The first row is the sample itself: every pair once.
    drawn = rng.integers(len(used), size=(resamples, len(used)))
    draws = np.vstack([np.ones((1, len(used)), dtype=np.int64), count_draws(drawn, len(used))])
    effect = _EFFECTS[metric.kind](used, metric, draws)
    if isinstance(effect, str):
        return Comparison(metric, MetricVerdict.UNKNOWN, len(used), reason=effect)
    return _judge(effect, metric, len(used), rules)


def _is_there(readings: Readings | None) -> bool:
    if readings is None:
        return False
    return readings.denominator > 0 if isinstance(readings, Quotient) else len(readings) > 0


def _quantile_effect(pairs: Sequence[Pair], metric: Metric, draws: NDArray[np.int64]) -> _Effect | str:
    arms = [[_numbers(block, metric) for block in arm] for arm in _arms(pairs)]
    fewest = min(sum(len(block) for block in arm) for arm in arms)
    if fewest < readings_needed(metric.share):
        return f"{fewest} readings in an arm; this quantile needs {readings_needed(metric.share)}"
    if not all(np.isfinite(block).all() for arm in arms for block in arm):
        return "a reading is not a finite number"
    a, b = (ResampledPool(arm).quantiles(draws, metric.share) for arm in arms)
    if metric.censored_at is not None and min(a[0], b[0]) >= metric.censored_at:
        return "too many requests of both arms have no answer for this quantile to be known"
    return _log_ratio(a, b, len(pairs)) or "the quantile is zero in an arm, so there is no ratio"


def _rate_effect(pairs: Sequence[Pair], metric: Metric, draws: NDArray[np.int64]) -> _Effect | str:
    a, b = (_quotients(arm, metric, draws) for arm in _arms(pairs))
    return _log_ratio(a, b, len(pairs)) or "the rate is zero in an arm, so there is no ratio"


def _share_effect(pairs: Sequence[Pair], metric: Metric, draws: NDArray[np.int64]) -> _Effect | str:
    """Shares are also compared by their ratio, unless one request would move it: then in points."""
    a, b = (_quotients(arm, metric, draws) for arm in _arms(pairs))
    totals = [sum(_quotient(block, metric).denominator for block in arm) for arm in _arms(pairs)]
    shares = (float(a[0]), float(b[0]))
    rarest = min(min(share, 1 - share) * total for share, total in zip(shares, totals, strict=True))
    if rarest >= FEWEST_EVENTS - 1e-9 and (relative := _log_ratio(a, b, len(pairs))) is not None:
        return relative
    spread = _standard_error(b - a, len(pairs))
    # Pairs that all have a share of exactly one agree with many true shares, so half an event is added.
    softened = [(share * total + 0.5) / (total + 1) for share, total in zip(shares, totals, strict=True)]
    floor = sqrt(sum(p * (1 - p) / total for p, total in zip(softened, totals, strict=True)))
    return _Effect(Scale.POINTS, *shares, shares[1] - shares[0], max(spread, floor))


_EFFECTS: dict[Kind, Callable[[Sequence[Pair], Metric, NDArray[np.int64]], _Effect | str]] = {
    Kind.QUANTILE: _quantile_effect,
    Kind.RATE: _rate_effect,
    Kind.SHARE: _share_effect,
}


def _arms(pairs: Sequence[Pair]) -> tuple[list[Block], list[Block]]:
    return [pair.a for pair in pairs], [pair.b for pair in pairs]


def _numbers(block: Block, metric: Metric) -> Sequence[float]:
    readings = block[metric.name]
    if isinstance(readings, Quotient):
        raise TypeError(f"{metric.name} is a quantile and needs single readings, not a quotient")
    return readings


def _quotient(block: Block, metric: Metric) -> Quotient:
    readings = block[metric.name]
    if not isinstance(readings, Quotient):
        raise TypeError(f"{metric.name} is a {metric.kind} and needs a Quotient per block")
    return readings


def _quotients(arm: Sequence[Block], metric: Metric, draws: NDArray[np.int64]) -> NDArray[np.float64]:
    parts = [_quotient(block, metric) for block in arm]
    above = draws @ np.asarray([part.numerator for part in parts], dtype=np.float64)
    below = draws @ np.asarray([part.denominator for part in parts], dtype=np.float64)
    result: NDArray[np.float64] = above / below
    return result


def _log_ratio(a: NDArray[np.float64], b: NDArray[np.float64], pairs: int) -> _Effect | None:
    if not (a.min() > 0 and b.min() > 0 and isfinite(a.max()) and isfinite(b.max())):
        return None
    # Not the logarithm of the quotient, which may overflow where the arms do not.
    logs = np.log(b) - np.log(a)
    return _Effect(Scale.RELATIVE, float(a[0]), float(b[0]), float(logs[0]), _standard_error(logs, pairs))


def _standard_error(estimates: NDArray[np.float64], pairs: int) -> float:
    """The spread over resamples, which is relative to the pairs' own mean: the factor corrects for that."""
    return float(estimates[1:].std()) * sqrt(pairs / (pairs - 1))


def _judge(effect: _Effect, metric: Metric, pairs: int, rules: _Strictness) -> Comparison:
    reach = rules.reach(pairs, effect.standard_error * sqrt(pairs))
    low, high = effect.estimate - reach, effect.estimate + reach
    least, most = rules.bounds(effect.scale)
    if least < low and high < most:
        verdict = MetricVerdict.EQUIVALENT
    elif low > 0 or high < 0:
        verdict = (
            MetricVerdict.BETTER if (effect.estimate > 0) == metric.higher_is_better else MetricVerdict.WORSE
        )
    else:
        verdict = MetricVerdict.INCONCLUSIVE
    return Comparison(
        metric=metric,
        verdict=verdict,
        pairs=pairs,
        scale=effect.scale,
        a=effect.a,
        b=effect.b,
        change=_shown(effect.estimate, effect.scale),
        interval=Interval(_shown(low, effect.scale), _shown(high, effect.scale), 1 - rules.alpha),
        standard_error=effect.standard_error,
        more_pairs=_more_pairs(effect, pairs, rules) if verdict is MetricVerdict.INCONCLUSIVE else None,
    )


def _shown(value: float, scale: Scale) -> float:
    if scale is Scale.POINTS:
        return max(-1.0, min(value, 1.0))
    return expm1(min(value, LARGEST_LOG))


def _more_pairs(effect: _Effect, pairs: int, rules: _Strictness) -> int | None:
    """How many further pairs would likely give either answer, if the change and its spread stay as they are.

    This is optimistic: the estimate that is furthest off asks for the fewest pairs.
    """
    spread = effect.standard_error * sqrt(pairs)
    z = NormalDist().inv_cdf(LIKELY)
    least, most = rules.bounds(effect.scale)
    left = min(effect.estimate - least, most - effect.estimate)
    nearest = max(left, abs(effect.estimate))
    total = _smallest(lambda n: rules.reach(n, spread, z) < nearest, pairs + 1)
    return None if total is None or total - pairs > MOST_PAIRS else total - pairs


def _pairs_within(rules: _Strictness, scale: Scale, spread: float, z: float) -> int | None:
    """How many pairs of this spread keep an interval around no change within the margin."""
    most = rules.bounds(scale)[1]
    return _smallest(lambda n: rules.reach(n, spread, z) <= most, FEWEST_PAIRS)


def _smallest(enough: Callable[[int], bool], first: int) -> int | None:
    """The smallest sufficient number of pairs from `first`; every larger number is sufficient too."""
    if enough(first):
        return first
    short, step = first, 1
    while not enough(short + step):
        short += step
        step *= 2
        if short > MOST_PAIRS:
            return None
    long = short + step
    while long - short > 1:
        middle = (short + long) // 2
        short, long = (short, middle) if enough(middle) else (middle, long)
    return long if long <= MOST_PAIRS else None


def _upper_factor(degrees: int) -> float:
    """How much larger the true spread may be than one estimated with so many degrees, at four in five.

    The estimated variance follows a chi-square; its lower fifth comes from a normal quantile by the
    Wilson-Hilferty cube, which is within 1.5% from three degrees on.
    """
    ninth = 2 / (9 * degrees)
    return float((1 - ninth + NormalDist().inv_cdf(1 - LIKELY) * sqrt(ninth)) ** -1.5)
