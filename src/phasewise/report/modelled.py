"""What is modelled, not measured, on the terminal: a model's sheet, levers, plans and simulated fleets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasewise.core.slo import Slo
from phasewise.core.statistics import Interval
from phasewise.core.units import (
    bound,
    count,
    dollars,
    duration,
    milliseconds,
    number,
    share,
    significant,
    size,
)
from phasewise.costs.roofline.accelerators import ASSUMPTION_MEANINGS, Accelerator
from phasewise.costs.sheet.facts import STATEMENT, FactTable, Section, Sheet, SheetFact
from phasewise.planning.disaggregation import Pays
from phasewise.planning.figures import CONFIDENCE, FleetFigures, SimulatedFigures
from phasewise.planning.lever_guide import GuideRow, Helps
from phasewise.planning.plan import CapacityPlan
from phasewise.planning.trials import Goal
from phasewise.report.console import text_table

LABEL_WIDTH = 30


def render_sheet(sheet: Sheet) -> Group:
    deployment = sheet.asked.deployment
    head = f"{sheet.asked.name} on {deployment.gpus} x {deployment.accelerator.name}: {STATEMENT}"
    parts: list[RenderableType] = [Text(head, style="bold"), *(_indented(line) for line in sheet.answer)]
    for section in sheet.sections:
        parts += [Text(), *_section(section)]
    parts += [Text(), *_assumptions(sheet), Text(), *_device(deployment.accelerator)]
    if notes := sheet.asked.notes:
        parts += [Text(), Text("Notes", style="bold"), *(_indented(f"- {note}") for note in notes)]
    return Group(*parts)


def _section(section: Section) -> Iterator[RenderableType]:
    yield Text(section.title, style="bold")
    for fact in section.facts:
        yield from _fact(fact)
    if section.table is not None:
        yield _table(section.table)
    if section.remark:
        yield _indented(section.remark, style="italic")


def _fact(fact: SheetFact) -> Iterator[RenderableType]:
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=LABEL_WIDTH)
    line.add_column()
    line.add_row(fact.label, Text(fact.text))
    yield Padding(line, (0, 0, 0, 2), expand=False)
    if fact.formula:
        yield _indented(f"= {fact.formula}", by=6, style="dim")


def _table(table: FactTable) -> Table:
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="underline")
    drawn.add_column("  ")
    for column, first in zip(table.columns, table.rows[0].values, strict=True):
        is_text = isinstance(first, str | bool)
        drawn.add_column(column.head, justify="left" if is_text else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row("", *row.texts)
    return drawn


def _assumptions(sheet: Sheet) -> Iterator[RenderableType]:
    yield Text("Assumed (--assume NAME=VALUE changes it)", style="bold")
    for name, meaning in ASSUMPTION_MEANINGS.items():
        value = getattr(sheet.asked.deployment.assumptions, name)
        yield _indented(f"{name:<14}{value:<6g}{meaning}")


def _device(accelerator: Accelerator) -> Iterator[RenderableType]:
    yield Text("The device, and where its figures are from", style="bold")
    peaks = ", ".join(f"{peak / 1e12:g} ({kind})" for kind, peak in accelerator.peak_flops.items())
    lines = {
        "peak_flops": f"TFLOP/s: {peaks}",
        "bandwidth_bytes_per_s": f"memory bandwidth: {size(accelerator.bandwidth_bytes_per_s)}/s",
        "memory_bytes": f"memory: {size(accelerator.memory_bytes)}",
        "link_bytes_per_s": f"link: {size(accelerator.link_bytes_per_s)}/s one way",
        "price_per_hour": f"price: {dollars(accelerator.price_per_hour)} per hour",
    }
    for key, line in lines.items():
        yield _indented(f"{line} [{accelerator.sources[key]}]")


def _indented(line: str, by: int = 2, style: str = "") -> Padding:
    return Padding(Text(line, style=style), (0, 0, 0, by), expand=False)


# --- The levers, in 80 columns.

_HELP_STYLES = {Helps.YES: "bold green", Helps.COSTS: "bold red", Helps.LITTLE: "", Helps.NO: "dim"}
_NAME_CELLS, _PHASE_CELLS = 21, 8


def render_guide(rows: Sequence[GuideRow], model: str) -> RenderableType:
    """Every lever: the phases that it helps, why, and by how much."""
    parts: list[RenderableType] = [Text("Which lever helps which phase", style="bold")]
    parts.append(Text(f"modelled: {model}, not measured", style="dim"))
    parts += [Text(), _lever_row("lever", Text("prefill"), Text("decode"), "why", style="underline")]
    for row in rows:
        lever = row.lever
        prefill, decode = (Text(helps, style=_HELP_STYLES[helps]) for helps in (lever.prefill, lever.decode))
        parts.append(_lever_row(lever.name, prefill, decode, lever.why, style="bold"))
        modelled = Text.assemble(("modelled: ", "dim"), row.modelled)
        parts.append(Padding(modelled, (0, 0, 0, 2)))
    return Group(*parts)


def _lever_row(name: str, prefill: Text, decode: Text, why: str, *, style: str = "") -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_NAME_CELLS)
    grid.add_column(width=_PHASE_CELLS)
    grid.add_column(width=_PHASE_CELLS)
    grid.add_column()
    grid.add_row(Text(name, style=style), prefill, decode, why)
    return grid


def guide_facts(rows: Sequence[GuideRow], model: str) -> dict[str, Any]:
    return {
        "v": 2,
        "modelled_on": model,
        "levers": [
            {
                "lever": row.lever.name,
                "helps_prefill": row.lever.prefill,
                "helps_decode": row.lever.decode,
                "why": row.lever.why,
                "modelled": row.modelled,
            }
            for row in rows
        ],
    }


# --- A plan, and simulated fleets: the choice first, then what surrounds it.

_VERDICTS = {Pays.YES: "pays", Pays.NO: "does not pay", Pays.UNDECIDED: "makes no clear difference"}


def render_plan(plan: CapacityPlan, goal: Goal, origin: str, *, priced: bool) -> RenderableType:
    """The choice first, then why."""
    choice = map(Text, _choice(plan, goal, priced=priced))
    why = map(Text, (*_disaggregation(plan), *_doubts(plan), origin))
    return Group(*choice, Text(), _fleets(plan, priced=priced), Text(), _compared(plan), *why)


def _choice(plan: CapacityPlan, goal: Goal, *, priced: bool) -> list[str]:
    chosen, prices = plan.chosen, plan.prices
    candidate, figures = chosen.candidate, chosen.simulated.figures
    slo = goal.slo
    lines = [
        f"Plan: {candidate.label}, max_num_batched_tokens {candidate.max_num_batched_tokens:,}, "
        f"max_num_seqs {candidate.max_num_seqs:,}",
        f"meets TTFT {bound(slo.ttft_s)} and TPOT {bound(slo.tpot_s)} for {share(figures.attained)} "
        f"of the requests; {share(goal.attainment)} were asked for",
    ]
    if plan.engines is not None:
        low, high = count(plan.engines.low), count(plan.engines.high)
        lines.append(
            f"{CONFIDENCE:.0%} interval: {low} to {high} engines, from the step times' uncertainty alone"
        )
    if plan.binds is not None:
        lines.append(f"what binds with fewer engines: {plan.binds}")
    more = plan.one_more.simulated.figures
    lines.append(
        f"one more engine ({plan.one_more.candidate.label}): {share(more.attained)} within the objective, "
        f"TTFT p90 {milliseconds(more.ttft_p90_s)} ms, TPOT p90 {milliseconds(more.tpot_p90_s)} ms"
    )
    paid = [prices.per_million_input, prices.per_million_output]
    read, written = [dollars(price) if priced else f"{significant(price)} engine-hours" for price in paid]
    lines.append(f"per million tokens: {read} input (prefill), {written} output (decode)")
    return [*lines, f"per hour: {dollars(prices.per_hour)}"] if priced else lines


def _fleets(plan: CapacityPlan, *, priced: bool) -> Table:
    heads = ("fleet", "$/hour" if priced else "engines", "TTFT", "TPOT", "SLO\nmet", "best at\nits price")
    table = text_table("Price against latency (p90, milliseconds)", heads, borders=False)
    for fleet in plan.fleets:
        figures, chosen = fleet.simulated.figures, fleet.candidate == plan.chosen.candidate
        table.add_row(
            f"{fleet.candidate.label}{' (plan)' if chosen else ''}",
            significant(fleet.price_per_hour),
            milliseconds(figures.ttft_p90_s),
            milliseconds(figures.tpot_p90_s),
            share(figures.attained),
            "yes" if fleet.efficient else "",
        )
    return table


def _compared(plan: CapacityPlan) -> Table:
    heads = ("engines", "prompt\ntokens", "mixed", "disaggregated")
    table = text_table("Requests/s carried at the objective", heads, words=0, borders=False)
    table.add_column("disaggregation")
    for point in (plan.here, *plan.scan):
        loads = (number(point.mixed_per_s), number(point.disaggregated_per_s))
        table.add_row(count(point.engines), count(point.prompt_tokens), *loads, _VERDICTS[point.pays])
    return table


def _disaggregation(plan: CapacityPlan) -> list[str]:
    lines = [f"Disaggregation {_VERDICTS[plan.here.pays]} here."]
    if not plan.scan:
        return lines
    if (engines := plan.pays_from_engines) is not None:
        lines.append(f"With these prompts it pays from {count(engines)} engines on, as far as was tried.")
    if (tokens := plan.pays_from_prompt_tokens) is not None:
        lines.append(f"With as many engines it pays from prompts of {count(tokens)} tokens on.")
    if not any(point.pays is Pays.YES for point in (plan.here, *plan.scan)):
        lines.append("It pays at no load and no prompt length that was tried.")
    return lines


def _doubts(plan: CapacityPlan) -> list[str]:
    lines = []
    if too_long := plan.chosen.simulated.figures.too_long:
        lines.append(f"{count(too_long)} requests are too long for the context, and count as missed.")
    if any(fleet.simulated.figures.saturated for fleet in plan.fleets):
        lines.append("\N{EN DASH}: no TTFT, because the queue grew until the load ended.")
    if plan.requests < plan.enough_requests:
        wanted = f"{plan.enough_requests:,}"
        lines.append(f"The traffic is short for so many open requests: give --requests {wanted} or more.")
    return lines


_COLUMNS = ("TTFT\np50", "TTFT\np90", "TTFT\np99", "TPOT\np50", "TPOT\np90", "tok/s", "cached", "SLO\nmet")
_TIMES = ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p90_s")


def render_simulation(rows: Sequence[SimulatedFigures], slo: Slo, origin: str) -> RenderableType:
    """What users would see, how busy the engines were, and where the step times came from."""
    table = text_table("Simulated (milliseconds)", ("fleet", *_COLUMNS), borders=False)
    for row in rows:
        figures = row.figures
        table.add_row(
            row.label,
            *(milliseconds(getattr(figures, name)) for name in _TIMES),
            number(figures.output_tokens_per_s),
            share(figures.cached_share),
            share(figures.attained),
        )
        if row.intervals:
            table.add_row("", *(_span(row.intervals.get(name)) for name in _TIMES), "", "", "")
    lines = [f"{row.label}: {summary(row.figures)}" for row in rows]
    lines.append(f"SLO: TTFT {duration(slo.ttft_s)}, TPOT {duration(slo.tpot_s)}")
    if any(row.intervals for row in rows):
        lines.append(f"in ranges: {CONFIDENCE:.0%} intervals, from the step times' uncertainty alone")
    return Group(table, *map(Text, (*lines, origin)))


def _span(interval: Interval | None) -> str:
    return "" if interval is None else f"{milliseconds(interval.low)}-{milliseconds(interval.high)}"


def summary(figures: FleetFigures) -> str:
    """What else is to be said of a fleet."""
    said = [f"{pool.pool} {share(pool.busy)} busy" for pool in figures.pools]
    said += [f"{count(times)} rejected ({reason})" for reason, times in figures.rejected.items()]
    if figures.too_long:
        said.append(f"{count(figures.too_long)} too long for the context")
    if len(figures.pools) > 1:
        said.append(f"{share(figures.split_share)} disaggregated")
    if preempted := sum(pool.preempted for pool in figures.pools):
        said.append(f"{count(preempted)} preemptions")
    whole = ", ".join(said)
    return f"{whole}; saturated, so TTFT would depend on how long it lasts" if figures.saturated else whole
