"""Simulated fleets in a table: a row for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.slo import Slo
from phasewise.core.statistics import Interval
from phasewise.core.units import count, duration, milliseconds, number, share
from phasewise.experiments.simulate.figures import FleetFigures
from phasewise.experiments.simulate.run import CONFIDENCE, SimulatedFigures

_COLUMNS = ("TTFT\np50", "TTFT\np90", "TTFT\np99", "TPOT\np50", "TPOT\np90", "tok/s", "cached", "SLO\nmet")
_TIMES = ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p90_s")


def render_simulation(rows: Sequence[SimulatedFigures], slo: Slo, origin: str) -> RenderableType:
    """What users would see, how busy the engines were, and where the step times came from."""
    table = Table(title="Simulated (milliseconds)", title_justify="left", box=None, pad_edge=False)
    table.add_column("fleet")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for row in rows:
        it = row.figures
        table.add_row(
            row.label,
            *(milliseconds(getattr(it, name)) for name in _TIMES),
            number(it.output_tokens_per_s),
            share(it.cached_share),
            share(it.attained),
        )
        if row.intervals:
            table.add_row("", *(_span(row.intervals.get(name), milliseconds) for name in _TIMES), "", "", "")
    lines: list[RenderableType] = [table]
    lines += [Text(f"{row.label}: {summary(row.figures)}") for row in rows]
    lines.append(Text(f"SLO: TTFT {duration(slo.ttft_s)}, TPOT {duration(slo.tpot_s)}"))
    if any(row.intervals for row in rows):
        lines.append(Text(f"in ranges: {CONFIDENCE:.0%} intervals, from the step times' uncertainty alone"))
    lines.append(Text(origin))
    return Group(*lines)


def _span(interval: Interval | None, shown: Callable[[float | None], str]) -> str:
    return "" if interval is None else f"{shown(interval.low)}-{shown(interval.high)}"


def summary(figures: FleetFigures) -> str:
    """What else is to be said of a fleet."""
    said = [f"{it.pool} {share(it.busy)} busy" for it in figures.pools]
    said += [f"{count(times)} rejected ({reason})" for reason, times in figures.rejected.items()]
    if figures.too_long:
        said.append(f"{count(figures.too_long)} too long for the context")
    if len(figures.pools) > 1:
        said.append(f"{share(figures.split_share)} disaggregated")
    if preempted := sum(it.preempted for it in figures.pools):
        said.append(f"{count(preempted)} preemptions")
    whole = ", ".join(said)
    return f"{whole}; saturated, so TTFT would depend on how long it lasts" if figures.saturated else whole
