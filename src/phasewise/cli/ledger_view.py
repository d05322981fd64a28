"""Predictions beside outcomes for people: a row per figure, the score below, readable without colour."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.compare.metrics import METRICS
from phasewise.model.interval import Interval
from phasewise.verify.ledger import Entry, Held, Outcome, Prediction, Score, score

HELD_WORDS = {
    Held.HELD: ("held", "bold green"),
    Held.OUTSIDE: ("outside", "bold yellow"),
    Held.WRONG_SIGN: ("WRONG SIGN", "bold red"),
    Held.INCONCLUSIVE: ("inconclusive", ""),
    Held.UNPREDICTED: ("not predicted", "dim"),
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
    """The figure, and that it is not the one the fix is for."""
    label = LABELS.get(prediction.metric, prediction.metric)
    return label if prediction.aim else f"({label})"


def predicted_words(prediction: Prediction) -> str:
    """The predicted change with its range."""
    if prediction.ratio is None:
        return "-"
    middle = "" if prediction.expected is None else f"{_percent(prediction.expected)} "
    return f"{middle}({_range(prediction.ratio)})"


def measured_words(outcome: Outcome | None) -> str:
    """The measured change with its range."""
    if outcome is None or outcome.ratio is None or outcome.interval is None:
        return "-"
    return f"{_percent(outcome.ratio)} ({_range(outcome.interval)})"


def outcome_text(entry: Entry) -> Text:
    """What became of the prediction, in a word."""
    if entry.outcome is None:
        return Text("open", "dim")
    words, style = HELD_WORDS[entry.outcome.held]
    return Text(words, style)


def score_lines(found: Score) -> list[str]:
    """The score in sentences."""
    lines = ["The score counts the figure that each fix aims at; those in brackets are its side effects."]
    if found.coverage is not None:
        low, high = found.coverage.low, found.coverage.high
        lines.append(
            f"Coverage: {found.covered} of {found.judged} lay within what was predicted "
            f"({found.covered / found.judged:.0%}; {low:.0%} to {high:.0%} at "
            f"{found.coverage.confidence:.0%} confidence)."
        )
    if found.median_width is not None:
        lines.append(
            f"Width: half of the intervals are narrower than x{found.median_width:.1f}, from their low to "
            "their high end."
        )
    if found.signed:
        lines.append(
            f"Sign right: {found.sign_right} of {found.signed} that were said to change and surely did."
        )
    lines.append(
        f"{found.predictions} fixes tried or to be tried: {found.judged} judged, {found.inconclusive} "
        f"inconclusive, {found.unpredicted} without a prediction, {found.open} open."
    )
    return lines


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.0f}%"


def _range(interval: Interval) -> str:
    return f"{_percent(interval.low)} to {_percent(interval.high)}"
