"""Predictions and outcomes as text: a row per figure, the score below."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from phasewise.benchmark.compare.ledger import (
    Entry,
    Prediction,
    PredictionCheck,
    Score,
    score,
)
from phasewise.benchmark.compare.verdict import METRICS
from phasewise.core.units import change, share
from phasewise.diagnosis.advice.fix import Fix
from phasewise.experiments.fix_trial import FixTrial
from phasewise.experiments.fleet_change import FleetChange
from phasewise.report.console import text_table
from phasewise.report.diagnosis.words import interval_in_words

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
    heads = ("made", "cause and fix", "figure", "predicted", "measured")
    table = text_table("Predictions and outcomes", heads, words=3)
    table.add_column("outcome", min_width=12)
    last_run = ""
    for entry in entries:
        prediction = entry.prediction
        is_new, last_run = prediction.run != last_run, prediction.run
        subject = f"{prediction.cause.replace('_', ' ')}: {prediction.lever} {prediction.value}"
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M", time.localtime(prediction.at_unix_s)) if is_new else "",
            subject if is_new else "",
            *_cells(entry),
        )
    return Group(table, *(Text(line) for line in score_lines(score(entries))))


def figure_words(prediction: Prediction) -> str:
    """The figure, in brackets if the fix does not aim at it."""
    label = LABELS.get(prediction.metric, prediction.metric)
    return label if prediction.aim else f"({label})"


def predicted_words(prediction: Prediction) -> str:
    if prediction.ratio is None:
        return "-"
    middle = "" if prediction.expected is None else f"{change(prediction.expected)} "
    return f"{middle}({interval_in_words(prediction.ratio)})"


def _cells(entry: Entry) -> tuple[str | Text, ...]:
    """What was predicted of a figure, what was measured, and whether that held."""
    outcome, measured = entry.outcome, "-"
    held = Text("open", "dim") if outcome is None else Text(*HELD_WORDS[outcome.held])
    if outcome is not None and outcome.ratio is not None and outcome.interval is not None:
        measured = f"{change(outcome.ratio)} ({interval_in_words(outcome.interval)})"
    return (figure_words(entry.prediction), predicted_words(entry.prediction), measured, held)


def score_lines(found: Score) -> list[str]:
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


def render_trial(trial: FixTrial) -> RenderableType:
    if trial.fix is None:
        return Text(f"No fix was tried: {trial.nothing}.")
    heading = "Not measured" if trial.comparison is None else "Measured"
    parts: list[RenderableType] = [Text(), Text(heading, "bold")]
    parts.append(Text(f"  {trial.fix.what}"))
    parts += [Text(f"  {line}") for line in trial.change]
    table = text_table("After the change against before", ("figure", "predicted", "measured"))
    table.add_column("outcome", min_width=12)
    for entry in trial.entries:
        table.add_row(*_cells(entry))
    parts += [table, *(Text(line) for line in _remarks(trial))]
    return Group(*parts)


def _remarks(trial: FixTrial) -> list[str]:
    lines = [
        f"{figure_words(entry.prediction)}: {why}"
        for entry in trial.entries
        if (why := entry.prediction.unpredictable or (entry.outcome.reason if entry.outcome else ""))
        and why != trial.nothing
    ]
    if trial.nothing:
        lines.append(f"ABORTED: {trial.nothing}")
    result = trial.comparison
    if result is not None:
        lines.append(f"{result.pairs} pairs of blocks, alternating, on fleets started for this.")
        lines += [f"remark: {remark}" for remark in result.remarks]
        if result.gave_up:
            lines.append(f"GAVE UP: {result.gave_up}")
        if result.cut_short:
            lines.append("Interrupted: predictions that were not measured stay open in the ledger.")
    return lines


def announcement(
    fix: Fix, change: FleetChange, predictions: Sequence[Prediction], duration: str
) -> list[str]:
    """The fix to try, and its predicted effect."""
    lines = [f"trying: {fix.what}", *(f"  {line}" for line in change.lines)]
    lines += [
        f"  predicted: {figure_words(each)} {predicted_words(each)}"
        if each.ratio is not None
        else f"  not predictable: {figure_words(each)}, {each.unpredictable}"
        for each in predictions
    ]
    lines.append("  written to the ledger; the fleet file is not changed")
    return [*lines, duration]


def duration_words(pairs: int, control_pairs: int, start_s: float, block_s: float) -> str:
    """The estimated duration, from the time that the first start and the first block took.

    Fleets alternate so that each pair starts one; the control starts none, because its fleet is running.
    """
    minutes = (pairs * start_s + 2 * (pairs + control_pairs) * block_s) / 60
    control = f"{control_pairs} pairs for the control and " if control_pairs else ""
    return f"measuring {control}{pairs} pairs of blocks: about {max(minutes, 1):.0f} min"


def fix_trial_facts(trial: FixTrial) -> dict[str, Any]:
    comparison = trial.comparison
    return {
        "fix": None if trial.fix is None else trial.fix.what,
        "change": list(trial.change),
        "entries": [asdict(entry) for entry in trial.entries],
        "comparison": None if comparison is None else comparison.to_dict(),
        "nothing": trial.nothing,
    }
