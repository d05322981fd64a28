"""Simulated fleets as one HTML file that opens offline: what each would give its users, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasewise.core.slo import Slo
from phasewise.core.units import bound, counted, duration, milliseconds, number, scale_for, share
from phasewise.experiments.simulate.run import CONFIDENCE, SimulatedFigures
from phasewise.report.charts import Axis, Chart, Panel, Series, Shape, fitting_axis, level, share_axis
from phasewise.report.drawn_charts import chart_grid
from phasewise.report.layout import defined, facts, repeat_section, section, strip, whole_page
from phasewise.report.markup import Html, table, together
from phasewise.report.simulation_table import summary

HEADINGS = (
    "fleet", "TTFT p50", "TTFT p90", "TTFT p99", "TPOT p50", "TPOT p90", "tokens/s", "cached", "SLO met",
)  # fmt: skip
MEANINGS = {
    "TTFT": "time to first token: from a request's arrival to its first token",
    "TPOT": "time per output token after the first, on average over an answer",
    "tokens/s": "output tokens, from the first arrival to the last token",
    "cached": "the share of prompt tokens that a prefix cache held",
    "SLO met": "the share of all requests that were answered within both objectives",
    "busy": "the share of the time in which an engine had anything to do, be it a single stream",
}
_LINES = {
    "TTFT": (("p50", "ttft_p50_s", "--prefill"), ("p90", "ttft_p90_s", "--engine-queue")),
    "TPOT": (("p50", "tpot_p50_s", "--decode"), ("p90", "tpot_p90_s", "--engine-queue")),
}


def render_page(
    rows: Sequence[SimulatedFigures], slo: Slo, *, command: str, circumstances: Mapping[str, str]
) -> str:
    """The whole page. `command` repeats the simulation."""
    charts = [_latency("TTFT", slo.ttft_s, rows), _latency("TPOT", slo.tpot_s, rows), _attained(rows)]
    drawn = [it for it in charts if it is not None] if len(rows) > 1 else []
    parts = (
        _strip(rows, slo),
        *([section("What more engines bring", chart_grid(drawn))] if drawn else []),
        section("Every fleet", table(HEADINGS, map(_cells, rows)), facts(dict(map(_summary, rows)))),
        section("This simulation", facts(circumstances)),
        defined(MEANINGS),
        repeat_section(command),
    )
    return whole_page("phasewise simulate", together(parts))


def _strip(rows: Sequence[SimulatedFigures], slo: Slo) -> Html:
    best = max(rows, key=lambda it: it.figures.attained)
    about = ("Simulated, not measured", counted(best.figures.requests, "request"))
    headline = f"{best.label}: {share(best.figures.attained)} of all requests meet the SLO"
    bounds = f"TTFT {duration(slo.ttft_s)}, TPOT {duration(slo.tpot_s)}."
    return strip("measured", about, headline, bounds)


def _cells(row: SimulatedFigures) -> tuple[str, ...]:
    it = row.figures
    times = (it.ttft_p50_s, it.ttft_p90_s, it.ttft_p99_s, it.tpot_p50_s, it.tpot_p90_s)
    return (
        row.label,
        *map(milliseconds, times),
        number(it.output_tokens_per_s),
        share(it.cached_share),
        share(it.attained),
    )


def _summary(row: SimulatedFigures) -> tuple[str, str]:
    return row.label, summary(row.figures)


def _latency(name: str, bound_s: float, rows: Sequence[SimulatedFigures]) -> Chart | None:
    """A latency by the number of engines; saturated fleets have no TTFT."""
    values_s = [
        value
        for _, field, _ in _LINES[name]
        for row in rows
        if (value := getattr(row.figures, field)) is not None
    ]
    if not values_s:
        return None
    scale = scale_for(max(values_s))
    x = _engines(rows)
    series: list[Series] = []
    for percentile, field, colour in _LINES[name]:
        points, ranges, texts = [], [], []
        for row in rows:
            if (value := getattr(row.figures, field)) is None:
                continue
            at = float(row.figures.engines)
            points.append((at, scale.of(value)))
            texts.append(f"{row.label}: {name} {percentile} {duration(value)}")
            if (interval := row.intervals.get(field)) is not None:
                ranges.append((at, scale.of(interval.low), at, scale.of(interval.high)))
        line = f"{name} {percentile}"
        series.append(Series(f"{line} line", colour, Shape.LINE, tuple(points), listed=False))
        if ranges:
            series.append(
                Series(f"{line} range", colour, Shape.SEGMENTS, tuple(ranges), size=2, listed=False)
            )
        series.append(Series(line, colour, Shape.DOTS, tuple(points), texts=tuple(texts), size=8))
    heights = [height for it in series for point in it.points for height in point[1::2]]
    y = fitting_axis(f"{name}, {scale.unit}", [*heights, scale.of(bound_s)])
    slo = level(f"SLO {bound(bound_s)}", scale.of(bound_s), x)
    return Chart(
        f"How does the number of engines affect {name}?",
        f"One point per fleet; ranges are {CONFIDENCE:.0%} intervals, where the step times were measured.",
        x,
        (Panel(y, (slo, *series), height=260),),
    )


def _attained(rows: Sequence[SimulatedFigures]) -> Chart:
    points = tuple((float(row.figures.engines), row.figures.attained) for row in rows)
    texts = tuple(f"{row.label}: {share(row.figures.attained)}" for row in rows)
    series = (
        Series("SLO met line", "--accent", Shape.LINE, points, listed=False),
        Series("SLO met", "--accent", Shape.DOTS, points, texts=texts, size=8),
    )
    return Chart(
        "How many engines are enough?",
        "The share of all requests that were answered within both objectives.",
        _engines(rows),
        (Panel(share_axis("SLO met"), series, height=260),),
    )


def _engines(rows: Sequence[SimulatedFigures]) -> Axis:
    return fitting_axis("engines", [float(row.figures.engines) for row in rows])
