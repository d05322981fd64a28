"""A trial of a fix as text and as JSON: the change, its predicted effect, and whether the prediction held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.diagnosis.advice.fix import Fix
from phasewise.experiments.compare.fix_trial import FixTrial
from phasewise.experiments.compare.fleet_change import FleetChange
from phasewise.experiments.compare.ledger import Prediction
from phasewise.report.ledger_view import figure_words, measured_words, outcome_text, predicted_words


def render(trial: FixTrial) -> RenderableType:
    """The prediction and the outcome."""
    if trial.fix is None:
        return Text(f"No fix was tried: {trial.nothing}.")
    heading = "Not measured" if trial.comparison is None else "Measured"
    parts: list[RenderableType] = [Text(), Text(heading, "bold")]
    parts.append(Text(f"  {trial.fix.what}"))
    parts += [Text(f"  {line}") for line in trial.change]
    table = Table("figure", title="After the change against before", title_justify="left")
    for column in ("predicted", "measured"):
        table.add_column(column, justify="right")
    table.add_column("outcome", min_width=12)
    for entry in trial.entries:
        prediction = entry.prediction
        table.add_row(
            figure_words(prediction),
            predicted_words(prediction),
            measured_words(entry.outcome),
            outcome_text(entry),
        )
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
    """The trial as plain JSON types."""
    comparison = trial.comparison
    return {
        "fix": None if trial.fix is None else trial.fix.what,
        "change": list(trial.change),
        "entries": [asdict(entry) for entry in trial.entries],
        "comparison": None if comparison is None else comparison.to_dict(),
        "nothing": trial.nothing,
    }
