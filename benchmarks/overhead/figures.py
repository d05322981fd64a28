"""From rows of rounds to figures with intervals. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median, stdev

from phasewise.benchmark.statistics.bootstrap import t_quantile
from phasewise.benchmark.statistics.comparison import FEWEST_PAIRS

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """The middle of several rounds and the two-sided 95% interval of their mean; no interval from too few."""

    median: float
    lower: float | None
    upper: float | None
    rounds: int


def ratio(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """How many times the second of each pair the first is. A pair is a round, so what drifts falls on both.

    The interval is Student's t over the rounds' log ratios; None when no pair has two figures.
    """
    logs = [log(ours / theirs) for ours, theirs in pairs if ours > 0 and theirs > 0]
    if not logs:
        return None
    of_logs = difference(logs)
    return Estimate(
        exp(of_logs.median),
        None if of_logs.lower is None else exp(of_logs.lower),
        None if of_logs.upper is None else exp(of_logs.upper),
        len(logs),
    )


def difference(values: Sequence[float]) -> Estimate:
    """The middle of paired differences, one per round."""
    if len(values) < FEWEST_PAIRS:
        return Estimate(median(values), None, None, len(values))
    reach = t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * stdev(values) / sqrt(len(values))
    middle = fmean(values)
    return Estimate(median(values), middle - reach, middle + reach, len(values))


def largest_held(rates: Sequence[int], held: Callable[[int], bool]) -> int | None:
    """The largest of the rising rates that holds, if all below it do; None if none does."""
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        if held(rates[middle]):
            low = middle
        else:
            high = middle
    return rates[low] if low >= 0 else None


def rising(first: int, last: int, factor: float) -> list[int]:
    """Rates from `first` to `last`, each so many times the one before."""
    rates, rate = [], float(first)
    while rate <= last:
        rates.append(round(rate))
        rate *= factor
    return rates
