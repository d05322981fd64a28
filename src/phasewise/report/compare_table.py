"""A comparison as text: one row per metric, readable without colour."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.units import NONE, milliseconds, number, share
from phasewise.experiments.compare.verdict import ComparisonResult
from phasewise.loadgen.statistics.comparison import Comparison, Kind, MetricVerdict, Scale

_STYLES = {
    MetricVerdict.BETTER: "bold green",
    MetricVerdict.WORSE: "bold red",
    MetricVerdict.EQUIVALENT: "green",
}


def render(result: ComparisonResult) -> RenderableType:
    """The verdicts, the checks behind them, and what to do about inconclusive ones."""
    lines = [Text(f"A  {result.a_name}"), Text(f"B  {result.b_name}")]
    parts: list[RenderableType] = [*lines, _table(result)]
    parts += [Text(line) for line in (*_basis(result), *_open_questions(result))]
    parts += [Text(f"remark: {remark}") for remark in result.remarks]
    return Group(*parts)


def _table(result: ComparisonResult) -> Table:
    title = (
        f"Is B better than A? Milliseconds, {result.pairs} pairs of blocks, margin {result.rules.margin:.0%}"
    )
    table = Table("metric", title=title, title_justify="left")
    for column in ("A", "B", "change", "interval"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("B is", min_width=12)
    for each in result.comparisons:
        table.add_row(
            each.metric.label,
            _value(each, each.a),
            _value(each, each.b),
            _change(each, each.change),
            _interval(each),
            Text(each.reason or each.verdict.value, style=_STYLES.get(each.verdict, "")),
        )
    return table


def _basis(result: ComparisonResult) -> list[str]:
    lines = [
        f"If A and B were equal, the probability that any of these {len(result.comparisons)} rows says "
        f"better or worse is at most {result.rules.alpha:.0%}."
    ]
    if result.control is not None:
        pairs = max((each.pairs for each in result.control.comparisons), default=0)
        if result.control.alike:
            lines.append(f"Control: A against itself, {pairs} pairs, shows no difference.")
        elif not result.control.differing:
            lines.append("The control is inconclusive: too few of its requests were answered.")
        else:
            lines.append(
                f"CONTROL FAILED: A differs from itself in {', '.join(result.control.differing)}. "
                "Do not trust these verdicts: the order of blocks or the machine affects the results."
            )
    if result.void_pairs:
        lines.append(f"{result.void_pairs} pairs were void (the load generator was late) and were repeated.")
    if result.gave_up:
        lines.append(f"GAVE UP: {result.gave_up}")
    if result.cut_short:
        lines.append("The comparison was interrupted: these are the pairs measured until then.")
    return lines


def _open_questions(result: ComparisonResult) -> list[str]:
    undecided = [each for each in result.comparisons if each.verdict is MetricVerdict.INCONCLUSIVE]
    return [
        f"{each.metric.label}: "
        + (
            f"about {each.more_pairs} more pairs would likely decide "
            f"(--pairs {result.pairs + each.more_pairs})"
            if each.more_pairs is not None
            else "no practical number of pairs would decide; raise --margin or --requests"
        )
        for each in undecided
    ]


def _value(each: Comparison, value: float | None) -> str:
    if value is None:
        return NONE
    if each.metric.kind is Kind.QUANTILE:
        return milliseconds(value)
    return share(value) if each.metric.kind is Kind.SHARE else number(value)


def _change(each: Comparison, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 100:+.1f}{' points' if each.scale is Scale.POINTS else '%'}"


def _interval(each: Comparison) -> str:
    if each.interval is None:
        return "-"
    low, high = each.interval.low * 100, each.interval.high * 100
    return f"{low:+.{_digits(low)}f} to {high:+.{_digits(high)}f}"


def _digits(percent: float) -> int:
    return 1 if abs(percent) < 100 else 0
