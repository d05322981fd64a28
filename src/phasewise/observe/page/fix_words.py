"""A fix in words: how it is set, and what it is predicted to bring, as intervals or not at all."""

from __future__ import annotations

from phasewise.diagnosis.fix import Figure, Fix, PredictedChange
from phasewise.model.interval import Interval

FIGURES = {
    Figure.TTFT_P50: "TTFT p50",
    Figure.TTFT_P90: "TTFT p90",
    Figure.TPOT_P50: "TPOT p50",
    Figure.ITL_P99: "ITL p99",
    Figure.THROUGHPUT: "tokens/s",
}
NO_CHANGE = 0.03
"""A change that lies within this share of none on both sides is not worth a figure."""


def how_in_words(fix: Fix) -> tuple[str, ...]:
    """The engine's flag and the fleet file's line, where there are any."""
    lines = (
        fix.engine_flag and f"engine flag: {fix.engine_flag}",
        fix.fleet_line and f"fleet file:  {fix.fleet_line}",
    )
    return tuple(line for line in lines if line)


def prediction_in_words(fix: Fix) -> str:
    """What the fix alone would do: the figure it aims at first, then those that move besides."""
    if fix.effect is None:
        return f"not predictable from here: {fix.unpredictable}" if fix.unpredictable else "not predicted"
    aimed = [change for change in fix.effect.changes if change.figure is fix.aims_at]
    others = [
        change
        for change in fix.effect.changes
        if change.figure is not fix.aims_at and not _stays(change.interval)
    ]
    told = ", ".join(map(change_in_words, (*aimed, *others)))
    doubt = ", though it may not help" if any(map(_may_not_help, aimed)) else ""
    return f"predicted{doubt}: {told or 'nothing that moves'}"


def _may_not_help(change: PredictedChange) -> bool:
    """Whether the interval holds no change at all, or a change for the worse."""
    if change.figure is Figure.THROUGHPUT:
        return change.interval.low <= 1.0
    return change.interval.high >= 1.0


def change_in_words(change: PredictedChange) -> str:
    """One figure's change, such as `TTFT p50 -40 to -62%`."""
    return f"{FIGURES[change.figure]} {interval_in_words(change.interval)}"


def interval_in_words(ratio: Interval) -> str:
    """A ratio's interval as changes in per cent, the smaller change first."""
    ends = sorted((ratio.low - 1, ratio.high - 1), key=abs if ratio.low >= 1 or ratio.high <= 1 else None)
    low, high = (f"{end * 100:+.0f}" for end in ends)
    return f"{low}%" if low == high else f"{low} to {high}%"


def _stays(ratio: Interval) -> bool:
    return ratio.low >= 1 - NO_CHANGE and ratio.high <= 1 + NO_CHANGE
