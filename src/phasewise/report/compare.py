"""A comparison of two servers in words, as a table without colour, and as a page that opens offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from phasewise.benchmark.compare.verdict import ComparisonResult, LatencySpread
from phasewise.benchmark.statistics.comparison import Comparison, Kind, MetricVerdict, Scale
from phasewise.core.units import NONE, counted, milliseconds, number, scale_for, share
from phasewise.report.bench.run_charts import cumulative
from phasewise.report.charts import (
    Chart,
    ChartSeries,
    Mark,
    Panel,
    axis,
    fitting_axis,
    rows_axis,
    share_axis,
    upright,
)
from phasewise.report.console import text_table
from phasewise.report.drawn_charts import chart_grid, drawn
from phasewise.report.markup import (
    Html,
    defined,
    element,
    facts,
    repeat_section,
    section,
    strip,
    table,
    together,
    whole_page,
)

_STYLES = {
    MetricVerdict.BETTER: "bold green",
    MetricVerdict.WORSE: "bold red",
    MetricVerdict.EQUIVALENT: "green",
}


def render(result: ComparisonResult) -> RenderableType:
    """The verdicts, the checks behind them, and what to do about inconclusive ones."""
    title = (
        f"Is B better than A? Milliseconds, {result.pairs} pairs of blocks, margin {result.rules.margin:.0%}"
    )
    table = text_table(title, HEADINGS[:-1], fold=True)
    table.add_column(HEADINGS[-1], min_width=12)
    for each in result.comparisons:
        *figures, verdict = cells(each)
        table.add_row(*figures, Text(verdict, style=_STYLES.get(each.verdict, "")))
    lines = (Text(line) for line in notes(result))
    return Group(Text(f"A  {result.a_name}"), Text(f"B  {result.b_name}"), table, *lines)


HEADINGS = ("metric", "A", "B", "change", "interval", "B is")


def cells(each: Comparison) -> tuple[str, ...]:
    """A metric's row; its latencies are in milliseconds."""
    return (
        each.metric.label,
        _value(each, each.a),
        _value(each, each.b),
        _change(each),
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
        speed = "faster" if found[0].verdict is MetricVerdict.BETTER else "slower"
        word = found[0].verdict.value if found[0].metric.kind is Kind.SHARE else speed
        return f"B is {word} than A at {_named(found[0])}{more}."
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


def _named(each: Comparison) -> str:
    unit = "" if each.scale is Scale.POINTS else "%"
    return f"{each.metric.label}: {_change(each)} ({_interval(each)}{unit})"


def notes(result: ComparisonResult) -> list[str]:
    """The checks behind the verdicts, what to do about inconclusive ones, and remarks."""
    undecided = [
        f"{each.metric.label}: no practical number of pairs would decide; raise --margin or --requests"
        if each.more_pairs is None
        else f"{each.metric.label}: about {each.more_pairs} more pairs would likely decide "
        f"(--pairs {result.pairs + each.more_pairs})"
        for each in result.comparisons
        if each.verdict is MetricVerdict.INCONCLUSIVE
    ]
    return [*_basis(result), *undecided, *(f"remark: {remark}" for remark in result.remarks)]


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


def _value(each: Comparison, value: float | None) -> str:
    if value is None:
        return NONE
    if each.metric.kind is Kind.QUANTILE:
        return milliseconds(value)
    return share(value) if each.metric.kind is Kind.SHARE else number(value)


def _change(each: Comparison) -> str:
    if each.change is None:
        return "-"
    return f"{each.change * 100:+.1f}{' points' if each.scale is Scale.POINTS else '%'}"


def _interval(each: Comparison) -> str:
    if each.interval is None:
        return "-"
    ends = (100 * each.interval.low, 100 * each.interval.high)
    return " to ".join(f"{end:+.{1 if abs(end) < 100 else 0}f}" for end in ends)


# --- The page: which server is faster, by how much, and how sure that is.

_UNITS = "Latencies in milliseconds, tokens per second, and the share of requests that met the SLO."
_COLOURS = {
    MetricVerdict.BETTER: "--decode",
    MetricVerdict.WORSE: "--objective",
    MetricVerdict.EQUIVALENT: "--accent",
    MetricVerdict.INCONCLUSIVE: "--client-lag",
}
LONGEST_S = 3_599.0
"""A longer latency stands for a request without an answer, which is counted and not drawn."""


def render_page(result: ComparisonResult, *, command: str, circumstances: Mapping[str, str]) -> str:
    """The whole page. `command` repeats the comparison."""
    changes = _changes(result)
    drawable = (each for each in result.spreads if _answered(each.a_s) and _answered(each.b_s))
    spreads = [_spread(each) for each in drawable]
    listed = element("ul", *(element("li", note) for note in notes(result)), class_="notes")
    parts = (
        _strip(result),
        section(
            "How large is the difference?", drawn(changes) if changes else element("p", "Nothing to draw.")
        ),
        section(
            "Every figure", element("p", _UNITS), table(HEADINGS, map(cells, result.comparisons)), listed
        ),
        *([section("Both distributions", chart_grid(spreads, columns=3))] if spreads else []),
        section("This comparison", facts(circumstances)),
        defined(),
        repeat_section(command),
    )
    return whole_page("phasewise compare", together(parts))


def _strip(result: ComparisonResult) -> Html:
    requests = max((len(spread.a_s) + len(spread.b_s) for spread in result.spreads[:1]), default=0)
    measured = f"{counted(result.pairs, 'pair')} of blocks, {counted(requests, 'request')} counted"
    about = ("Synthetic load", measured, f"A {result.a_name}", f"B {result.b_name}")
    sure = (
        f"All intervals hold together with probability {1 - result.rules.alpha:.0%}; a change within "
        f"{result.rules.margin:.0%} does not matter."
    )
    return strip(_tone(result), about, conclusion(result), sure)


def _tone(result: ComparisonResult) -> str:
    found = {each.verdict for each in result.comparisons}
    if not result.trusted or {MetricVerdict.BETTER, MetricVerdict.WORSE} <= found:
        return "unknown"
    if MetricVerdict.WORSE in found:
        return "failing"
    return "healthy" if MetricVerdict.BETTER in found else "measured"


def _changes(result: ComparisonResult) -> Chart | None:
    """Each figure's change with its interval around no change; the margin is shaded."""
    compared = [
        (row, each, 100 * each.change, 100 * each.interval.low, 100 * each.interval.high)
        for row, each in enumerate(result.comparisons, start=1)
        if each.change is not None and each.interval is not None
    ]
    if not compared:
        return None
    margin, rows = 100 * result.rules.margin, len(result.comparisons)
    ends = [end for *_, low, high in compared for end in (low, high)]
    x = axis("change from A to B, %", [-margin, margin, *ends], from_zero=False)
    y = rows_axis("figure", [(row, each.metric.label) for row, each, *_ in compared], rows)
    series = [
        ChartSeries(f"within {margin:.0f}%", "--shade", Mark.BOXES, ((-margin, y.low, margin, y.high),)),
        upright("no change", 0.0, y),
    ]
    for verdict, colour in _COLOURS.items():
        if found := [line for line in compared if line[1].verdict is verdict]:
            name = f"B is {verdict.value}"
            intervals = tuple((low, row, high, row) for row, _, _, low, high in found)
            dots = tuple((change, row) for row, _, change, _, _ in found)
            texts = tuple(_in_words(each) for _, each, *_ in found)
            series += [
                ChartSeries(f"{name}, interval", colour, Mark.SEGMENTS, intervals, size=3, listed=False),
                ChartSeries(name, colour, Mark.DOTS, dots, texts=texts, size=10),
            ]
    return Chart(
        "Is B better than A?",
        "Each dot is the change from A to B, its line the interval that holds for all figures together. "
        "Left is less: good for latencies, bad for tokens/s and for the share that met the SLO. A line that "
        "touches no change leaves the figure undecided, unless all of it is in the shaded margin.",
        x,
        (Panel(y, tuple(series), height=28 * rows + 16),),
    )


def _in_words(each: Comparison) -> str:
    name, a, b, change, interval, verdict = cells(each)
    return f"{name}: {a} to {b}, {change} ({interval}), {verdict}"


def _answered(latencies_s: Sequence[float]) -> list[float]:
    return [value for value in latencies_s if value <= LONGEST_S]


def _spread(spread: LatencySpread) -> Chart:
    arms = (("A", "--engine-queue", spread.a_s), ("B", "--prefill", spread.b_s))
    scale = scale_for(max(_answered(spread.a_s)[-1], _answered(spread.b_s)[-1]))
    series = tuple(
        cumulative(name, colour, _answered(values_s), scale, spread.of_what, len(values_s))
        for name, colour, values_s in arms
    )
    shown = [x for curve in series for x, _ in curve.points]
    return Chart(
        f"{spread.label} of A and B",
        f"Height: the share of {spread.of_what} with this {spread.label} or less. The curve further left is "
        "faster; a curve that ends below 100% has requests without an answer.",
        fitting_axis(f"{spread.label}, {scale.unit}", shown),
        (Panel(share_axis(f"share of {spread.of_what}"), series, height=220),),
    )
