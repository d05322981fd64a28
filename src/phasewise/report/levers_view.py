"""The table of levers as text in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasewise.planning.lever_guide import GuideRow, Helps

_STYLES = {Helps.YES: "bold green", Helps.COSTS: "bold red", Helps.LITTLE: "", Helps.NO: "dim"}
_NAME_CELLS, _PHASE_CELLS = 21, 8


def render_guide(rows: Sequence[GuideRow], model: str) -> RenderableType:
    """Every lever: the phases that it helps, why, and by how much."""
    parts: list[RenderableType] = [Text("Which lever helps which phase", style="bold")]
    parts.append(Text(f"modelled: {model}, not measured", style="dim"))
    parts += [Text(), _line("lever", Text("prefill"), Text("decode"), "why", style="underline")]
    for row in rows:
        lever = row.lever
        prefill, decode = (Text(helps, style=_STYLES[helps]) for helps in (lever.prefill, lever.decode))
        parts.append(_line(lever.name, prefill, decode, lever.why, style="bold"))
        modelled = Text.assemble(("modelled: ", "dim"), row.modelled)
        parts.append(Padding(modelled, (0, 0, 0, 2)))
    return Group(*parts)


def _line(name: str, prefill: Text, decode: Text, why: str, *, style: str = "") -> Table:
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
