"""What is computed from a model's shape, on the terminal: its sheet, and which lever helps which phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasewise.core.units import dollars, size
from phasewise.costs.roofline.accelerators import ASSUMPTION_MEANINGS, Accelerator
from phasewise.costs.sheet.facts import STATEMENT, FactTable, Section, Sheet, SheetFact
from phasewise.planning.lever_guide import GuideRow, Helps

LABEL_WIDTH = 30


def render(sheet: Sheet) -> Group:
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
