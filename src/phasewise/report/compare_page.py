"""A comparison as one HTML file that opens offline: which server is faster, by how much, and how sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from phasewise.benchmark.compare.verdict import ComparisonResult, LatencySpread
from phasewise.benchmark.statistics.comparison import Comparison, MetricVerdict
from phasewise.core.units import counted, scale_for
from phasewise.report.bench.run_charts import cumulative
from phasewise.report.charts import (
    Axis,
    Chart,
    ChartSeries,
    Mark,
    Panel,
    axis,
    fitting_axis,
    rows_axis,
    share_axis,
)
from phasewise.report.compare_table import HEADINGS, cells, conclusion, notes
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

UNITS = "Latencies in milliseconds, tokens per second, and the share of requests that met the SLO."
COLOURS = {
    MetricVerdict.BETTER: "--decode",
    MetricVerdict.WORSE: "--objective",
    MetricVerdict.EQUIVALENT: "--accent",
    MetricVerdict.INCONCLUSIVE: "--client-lag",
}
LONGEST_S = 3_599.0
"""A longer latency stands for a request without an answer, which is counted and not drawn."""
LOG_SPAN = 3.0
"""Ratios that span more than this factor are drawn on a logarithmic axis."""
LOG_TICKS = (0.01, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 100)
LEAST_RATIO = 0.001


def render_page(result: ComparisonResult, *, command: str, circumstances: Mapping[str, str]) -> str:
    """The whole page. `command` repeats the comparison."""
    ratios = _ratios(result)
    spreads = [
        _spread(spread) for spread in result.spreads if _answered(spread.a_s) and _answered(spread.b_s)
    ]
    listed = element("ul", *(element("li", note) for note in notes(result)), class_="notes")
    parts = (
        _strip(result),
        section(
            "How large is the difference?", drawn(ratios) if ratios else element("p", "Nothing to draw.")
        ),
        section("Every figure", element("p", UNITS), table(HEADINGS, map(cells, result.comparisons)), listed),
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


def _ratios(result: ComparisonResult) -> Chart | None:
    """Each figure's change with its interval around no change; the margin is shaded."""
    compared = [
        (row, each, 1 + each.change, (1 + each.interval.low, 1 + each.interval.high))
        for row, each in enumerate(result.comparisons, start=1)
        if each.change is not None and each.interval is not None
    ]
    if not compared:
        return None
    margin = result.rules.margin
    x = _ratio_axis([1 - margin, 1 + margin, *(end for *_, ends in compared for end in ends)])
    y = rows_axis(
        "figure",
        [(row, each.metric.label) for row, each in enumerate(result.comparisons, start=1)],
        len(result.comparisons),
    )
    band = ChartSeries(
        f"within {margin:.0%}", "--shade", Mark.BOXES, ((1 - margin, y.low, 1 + margin, y.high),)
    )
    none = ChartSeries(
        "no change", "--muted", Mark.SEGMENTS, ((1.0, y.low, 1.0, y.high),), size=1.5, dashed=True
    )
    series = [band, none]
    for verdict, colour in COLOURS.items():
        rows = [(row, each, ratio, ends) for row, each, ratio, ends in compared if each.verdict is verdict]
        if rows:
            intervals = tuple((low, row, high, row) for row, _, _, (low, high) in rows)
            dots = tuple((ratio, row) for row, _, ratio, _ in rows)
            texts = tuple(_in_words(each) for _, each, _, _ in rows)
            name = f"B is {verdict.value}"
            series.append(
                ChartSeries(f"{name}, interval", colour, Mark.SEGMENTS, intervals, size=3, listed=False)
            )
            series.append(ChartSeries(name, colour, Mark.DOTS, dots, texts=texts, size=10))
    return Chart(
        "Is B better than A?",
        "Each dot is the change from A to B, its line the interval that holds for all figures together. "
        "Left is less: good for latencies, bad for tokens/s and for the share that met the SLO. A line that "
        "touches no change leaves the figure undecided, unless all of it is in the shaded margin.",
        x,
        (Panel(y, tuple(series), height=28 * len(result.comparisons) + 16),),
    )


def _in_words(each: Comparison) -> str:
    name, a, b, change, interval, verdict = cells(each)
    return f"{name}: {a} to {b}, {change} ({interval}), {verdict}"


def _ratio_axis(values: Sequence[float]) -> Axis:
    """Ratios named by the change that they are; logarithmic if they differ much."""
    low, high = max(min(values), LEAST_RATIO), max(values)
    scale = axis("change from A to B", [low, high], from_zero=False)
    if high <= LOG_SPAN * low:
        return replace(scale, ticks=tuple((tick, _tick(tick)) for tick, _ in scale.ticks))
    ticks = tuple((tick, _tick(tick)) for tick in LOG_TICKS if low <= tick <= high)
    return Axis(f"{scale.title}, logarithmic", low / 1.1, high * 1.1, ticks, log=True)


def _tick(ratio: float) -> str:
    percent = round((ratio - 1) * 100, 1)
    return f"{percent:+g}%" if percent else "0%"


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
