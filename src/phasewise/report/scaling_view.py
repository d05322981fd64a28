"""Trials of scaling rules, in a table and as one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.slo import Slo
from phasewise.core.units import counted, duration, number, share
from phasewise.experiments.simulate.scaling import ScalingFigures
from phasewise.report.charts import Chart, Panel, Series, Shape, axis
from phasewise.report.drawn_charts import chart_grid
from phasewise.report.layout import defined, facts, repeat_section, section, strip, whole_page
from phasewise.report.markup import table as html_table
from phasewise.report.markup import together

HEADINGS = ("rule", "SLO met", "engine hours", "engines", "changes", "reversals")
MEANINGS = {
    "SLO met": "the share of all requests that were answered within both objectives",
    "engine hours": "from the start of an engine until its last answer after it was given up",
    "reversals": "changes within ten minutes of one in the other direction",
    "hindsight": "a lower bound: the least engine time that this share of the requests can take",
}
_COLOURS = ("--accent", "--prefill", "--decode", "--engine-queue", "--objective")


def render_trials(rows: Sequence[ScalingFigures], slo: Slo, origin: str) -> RenderableType:
    """A row for each rule, and where the step times came from."""
    table = Table(title="Scaling rules (simulated)", title_justify="left", box=None, pad_edge=False)
    for place, name in enumerate(HEADINGS):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*_cells(row))
    return Group(table, Text(f"SLO: TTFT {duration(slo.ttft_s)}, TPOT {duration(slo.tpot_s)}"), Text(origin))


def render_trials_page(
    rows: Sequence[ScalingFigures], slo: Slo, *, command: str, circumstances: Mapping[str, str]
) -> str:
    """The whole page. `command` repeats the trials."""
    drawn = [row for row in rows if row.history]
    best = max(drawn or rows, key=lambda it: it.attained)
    about = (
        "Simulated, not measured",
        counted(0 if best.figures is None else best.figures.requests, "request"),
    )
    headline = f"{best.label}: {share(best.attained)} of all requests meet the SLO"
    bounds = f"TTFT {duration(slo.ttft_s)}, TPOT {duration(slo.tpot_s)}."
    pools = list(dict.fromkeys(pool for row in drawn for pool in row.history))
    parts = (
        strip("measured", about, headline, bounds),
        section("Engines over time", chart_grid([_replicas(pool, drawn) for pool in pools])),
        section("Every rule", html_table(HEADINGS, map(_cells, rows))),
        section("This simulation", facts(circumstances)),
        defined(MEANINGS),
        repeat_section(command),
    )
    return whole_page("phasewise simulate", together(parts))


def _cells(row: ScalingFigures) -> tuple[str, ...]:
    hours = number(row.engine_hours)
    if not row.history:
        return row.label, share(row.attained), hours, "–", "–", "–"
    counts = [[engines for _, engines in it] for it in row.history.values()]
    spans = ", ".join(str(min(it)) if min(it) == max(it) else f"{min(it)}-{max(it)}" for it in counts)
    changes = sum(len(it) - 1 for it in counts)
    return row.label, share(row.attained), hours, spans, str(changes), str(row.reversals)


def _replicas(pool: str, rows: Sequence[ScalingFigures]) -> Chart:
    ends_s = max(0.0 if row.figures is None else row.figures.virtual_s for row in rows)
    series = []
    for place, row in enumerate(rows):
        points = [(at_s / 3600, float(engines)) for at_s, engines in row.history[pool]]
        points.append((max(ends_s / 3600, points[-1][0]), points[-1][1]))
        steps = [step for before, after in pairwise(points) for step in (before, (after[0], before[1]))]
        colour = _COLOURS[place % len(_COLOURS)]
        series.append(Series(row.label, colour, Shape.LINE, (*steps, points[-1])))
    heights = [point[1] for it in series for point in it.points]
    return Chart(
        f"How many engines does each rule run in pool {pool}?",
        "Engines that were asked for; they serve once they have started.",
        axis("hours", [0.0, ends_s / 3600]),
        (Panel(axis("engines", heights, whole=True), tuple(series), height=260),),
    )
