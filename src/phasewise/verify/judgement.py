"""Whether a measurement bears a prediction out. Pure; both are ratios of after to before."""

from __future__ import annotations

from phasewise.bench.comparison import Comparison, Scale
from phasewise.model.interval import Interval
from phasewise.verify.ledger import Held


def judge_prediction(predicted: Interval | None, ratio: float | None, measured: Interval | None) -> Held:
    """Hold a predicted ratio against a measured one and its interval.

    Held is what was measured within what was predicted. Where a change was predicted, a measurement that
    allows both for it and for no change at all is inconclusive, though its middle may lie well; where none
    was for certain, one that is wider than the prediction on both sides is. Wrong sign is a change that is
    sure and goes the other way.
    """
    if predicted is None:
        return Held.UNPREDICTED
    if ratio is None or measured is None:
        return Held.INCONCLUSIVE
    if _too_coarse(predicted, measured):
        return Held.INCONCLUSIVE
    if predicted.low <= ratio <= predicted.high:
        return Held.HELD
    opposite = (predicted.high < 1.0 < measured.low) or (measured.high < 1.0 < predicted.low)
    return Held.WRONG_SIGN if opposite else Held.OUTSIDE


def _too_coarse(predicted: Interval, measured: Interval) -> bool:
    if _holds(predicted, 1.0):
        return measured.low < predicted.low and measured.high > predicted.high
    overlap = measured.low <= predicted.high and predicted.low <= measured.high
    return _holds(measured, 1.0) and overlap


def _holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def measured_ratio(comparison: Comparison) -> tuple[float | None, Interval | None]:
    """B over A with its interval, where the comparison is relative and was decided by enough pairs."""
    if comparison.scale is not Scale.RELATIVE or comparison.change is None or comparison.interval is None:
        return None, None
    found = comparison.interval
    return 1.0 + comparison.change, Interval(1.0 + found.low, 1.0 + found.high, found.confidence)
