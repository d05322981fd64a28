"""The tour as text: a prediction before each result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.padding import Padding
from rich.text import Text

from phasewise.core.units import duration
from phasewise.experiments.tour.stops import SAME, STOPS, THROUGHPUT, Outcome, Prediction, Stop

UNBOUNDED = 100.0
"""A bound above this says nothing."""


def predicted(stop: Stop) -> Iterator[Padding | Text]:
    """What is going to be tried, and what should come of it."""
    yield Text(f"\nrun {STOPS.index(stop) + 1} of {len(STOPS)}: {stop.title}", style="bold")
    for it in stop.predictions:
        yield _line("predicted", f"{it.figure} {range_in_words(it)}: {it.why}")


def measured(found: Sequence[Outcome]) -> Iterator[Padding]:
    """What came of it."""
    for it in found:
        style = {True: "green", False: "yellow", None: "dim"}[it.held]
        yield _line("measured", in_words(it), style)


def _line(source: str, words: str, style: str = "") -> Padding:
    return Padding(Text.assemble((f"{source}  ", "dim"), (words, style)), (0, 0, 0, 3))


def range_in_words(prediction: Prediction) -> str:
    """The bounds of a ratio."""
    low, high = prediction.low, prediction.high
    if (low, high) == SAME:
        return f"about the same ({low:.2g}x to {high:.3g}x)"
    if high >= UNBOUNDED:
        return f"over {low:.1f}x"
    return f"at most {high:.1f}x" if low <= 0 else f"{low:.1f}x to {high:.1f}x"


def in_words(outcome: Outcome) -> str:
    """Both figures, the ratio, and what explains one that is not as predicted."""
    figure = outcome.prediction.figure
    ratio = outcome.ratio
    if ratio is None:
        return f"{figure}: not measured"
    before, after = (_value(figure, value) for value in (outcome.before, outcome.after))
    prediction = outcome.prediction
    if outcome.held:
        verdict = "as predicted"
    elif ratio < prediction.low:
        verdict = f"lower than predicted, perhaps because {prediction.lower}"
    else:
        verdict = f"higher than predicted, perhaps because {prediction.higher}"
    return f"{figure} {before} ({prediction.against}) -> {after}, {_times(ratio)}: {verdict}"


def held_in_words(found: Iterable[Outcome]) -> str:
    """How many predictions held, of those that could be tried."""
    held = [it.held for it in found if it.held is not None]
    return f"{sum(held)} of {len(held)} predictions held"


def _times(ratio: float) -> str:
    if 0 < ratio < 0.1:
        return f"{1 / ratio:.0f} times less"
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def _value(figure: str, value: float | None) -> str:
    return f"{value or 0.0:.1f}" if figure == THROUGHPUT else duration(value)
