"""Predictions and outcomes as text: a row per figure, the score below."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.statistics import Interval
from phasewise.core.units import change, share
from phasewise.experiments.compare.ledger import (
    Entry,
    MeasuredOutcome,
    Prediction,
    PredictionCheck,
    Score,
    score,
)
from phasewise.experiments.compare.runner import METRICS

HELD_WORDS = {
    PredictionCheck.HELD: ("held", "bold green"),
    PredictionCheck.OUTSIDE: ("outside", "bold yellow"),
    PredictionCheck.WRONG_SIGN: ("WRONG SIGN", "bold red"),
    PredictionCheck.INCONCLUSIVE: ("inconclusive", ""),
    PredictionCheck.UNPREDICTED: ("not predicted", "dim"),
}
LABELS = {metric.name: metric.label for metric in METRICS}


def render(entries: Sequence[Entry]) -> RenderableType:
    """The whole ledger, the oldest first."""
    table = Table("made", "cause and fix", "figure", title="Predictions and outcomes", title_justify="left")
    for column in ("predicted", "measured"):
        table.add_column(column, justify="right")
    table.add_column("outcome", min_width=12)
    last_run = ""
    for entry in entries:
        prediction = entry.prediction
        is_new, last_run = prediction.run != last_run, prediction.run
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M", time.localtime(prediction.at_unix_s)) if is_new else "",
            _subject(prediction) if is_new else "",
            figure_words(prediction),
            predicted_words(prediction),
            measured_words(entry.outcome),
            outcome_text(entry),
        )
    return Group(table, *(Text(line) for line in score_lines(score(entries))))


def _subject(prediction: Prediction) -> str:
    return f"{prediction.cause.replace('_', ' ')}: {prediction.lever} {prediction.value}"


def figure_words(prediction: Prediction) -> str:
    """The figure, in brackets if the fix does not aim at it."""
    label = LABELS.get(prediction.metric, prediction.metric)
    return label if prediction.aim else f"({label})"


def predicted_words(prediction: Prediction) -> str:
    """The predicted change with its range."""
    if prediction.ratio is None:
        return "-"
    middle = "" if prediction.expected is None else f"{change(prediction.expected)} "
    return f"{middle}({_range(prediction.ratio)})"


def measured_words(outcome: MeasuredOutcome | None) -> str:
    """The measured change with its range."""
    if outcome is None or outcome.ratio is None or outcome.interval is None:
        return "-"
    return f"{change(outcome.ratio)} ({_range(outcome.interval)})"


def outcome_text(entry: Entry) -> Text:
    """The outcome in a word."""
    if entry.outcome is None:
        return Text("open", "dim")
    words, style = HELD_WORDS[entry.outcome.held]
    return Text(words, style)


def score_lines(found: Score) -> list[str]:
    """The score in sentences."""
    lines = ["The score counts the figure that each fix aims at; figures in brackets are side effects."]
    if found.coverage is not None:
        low, high = found.coverage.low, found.coverage.high
        lines.append(
            f"Coverage: {found.covered} of {found.judged} lay within the predicted interval "
            f"({share(found.covered / found.judged)}; {share(low)} to {share(high)} at "
            f"{found.coverage.confidence:.0%} confidence)."
        )
    if found.median_width is not None:
        lines.append(
            f"Width: half of the intervals have a high end less than {found.median_width:.1f} times "
            "their low end."
        )
    if found.signed:
        lines.append(
            f"Right direction: {found.sign_right} of {found.signed} figures that were predicted to change "
            "and clearly did."
        )
    lines.append(
        f"{found.predictions} fixes with predictions: {found.judged} judged, {found.inconclusive} "
        f"inconclusive, {found.unpredicted} without a prediction, {found.open} open."
    )
    return lines


def _range(interval: Interval) -> str:
    return f"{change(interval.low)} to {change(interval.high)}"
