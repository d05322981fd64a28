"""A comparison in words, for the screen and the page; and as a table that is readable without colour."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.benchmark.compare.verdict import ComparisonResult
from phasewise.benchmark.statistics.comparison import Comparison, Kind, MetricVerdict, Scale
from phasewise.core.units import NONE, milliseconds, number, share
from phasewise.report.console import text_table

_STYLES = {
    MetricVerdict.BETTER: "bold green",
    MetricVerdict.WORSE: "bold red",
    MetricVerdict.EQUIVALENT: "green",
}


def render(result: ComparisonResult) -> RenderableType:
    """The verdicts, the checks behind them, and what to do about inconclusive ones."""
    lines = [Text(f"A  {result.a_name}"), Text(f"B  {result.b_name}")]
    parts: list[RenderableType] = [*lines, _table(result)]
    parts += [Text(line) for line in notes(result)]
    return Group(*parts)


def _table(result: ComparisonResult) -> Table:
    title = (
        f"Is B better than A? Milliseconds, {result.pairs} pairs of blocks, margin {result.rules.margin:.0%}"
    )
    table = text_table(title, HEADINGS[:-1], fold=True)
    table.add_column(HEADINGS[-1], min_width=12)
    for each in result.comparisons:
        *figures, verdict = cells(each)
        table.add_row(*figures, Text(verdict, style=_STYLES.get(each.verdict, "")))
    return table


HEADINGS = ("metric", "A", "B", "change", "interval", "B is")


def cells(each: Comparison) -> tuple[str, ...]:
    """A metric's row; its latencies are in milliseconds."""
    return (
        each.metric.label,
        _value(each, each.a),
        _value(each, each.b),
        _change(each, each.change),
        _interval(each),
        each.reason or each.verdict.value,
    )


def conclusion(result: ComparisonResult) -> str:
    """Whether requests failed, then which server is faster, at which figure and by how much."""
    failed = result.failures and f"{result.failures[0].upper()}{result.failures[1:]}. "
    return f"{failed}{_faster(result)}"


def _faster(result: ComparisonResult) -> str:
    if not result.trusted:
        return f"No verdict: {_why_not(result)}."
    better, worse = (_differing(result, verdict) for verdict in (MetricVerdict.BETTER, MetricVerdict.WORSE))
    if better and worse:
        return f"B is better than A at {_named(better[0])}, and worse at {_named(worse[0])}."
    if found := better or worse:
        more = f", and at {len(found) - 1} other figures" if len(found) > 1 else ""
        return f"B is {_word(found[0])} than A at {_named(found[0])}{more}."
    deciding = [each for each in result.comparisons if each.metric.decides]
    if deciding and all(each.verdict is MetricVerdict.EQUIVALENT for each in deciding):
        return f"B is as fast as A: every deciding figure is within {result.rules.margin:.0%}."
    return "Inconclusive: no figure of B differs from A by more than the noise."


def _why_not(result: ComparisonResult) -> str:
    if result.gave_up:
        return result.gave_up.rstrip(".")
    if result.control is not None and not result.control.alike:
        differing = ", ".join(result.control.differing)
        return f"A differs from itself in {differing}" if differing else "the control is inconclusive"
    return "no figure could be compared"


def _differing(result: ComparisonResult, verdict: MetricVerdict) -> list[Comparison]:
    """The figures with this verdict, those that decide first, then in the order of the table."""
    found = [each for each in result.comparisons if each.verdict is verdict]
    return sorted(found, key=lambda each: not each.metric.decides)


def _word(each: Comparison) -> str:
    if each.metric.kind is Kind.SHARE:
        return each.verdict.value
    return "faster" if each.verdict is MetricVerdict.BETTER else "slower"


def _named(each: Comparison) -> str:
    unit = "" if each.scale is Scale.POINTS else "%"
    return f"{each.metric.label}: {_change(each, each.change)} ({_interval(each)}{unit})"


def notes(result: ComparisonResult) -> list[str]:
    """The checks behind the verdicts, what to do about inconclusive ones, and remarks."""
    remarks = (f"remark: {remark}" for remark in result.remarks)
    return [*_basis(result), *_open_questions(result), *remarks]


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
