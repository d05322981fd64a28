"""The levers as text, in 80 columns and readable without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasewise.experiments.levers import findings as words
from phasewise.experiments.levers.catalogue import SHOWN, Case
from phasewise.experiments.levers.findings import Agreement, LeverFinding, findings
from phasewise.experiments.levers.modelled import modelled_in_words
from phasewise.experiments.levers.notes import paging_sentence, reading_notes
from phasewise.experiments.levers.results import LeverEffect, Results
from phasewise.loadgen.statistics.comparison import MetricVerdict

# --- When a table's rows were measured, in words.


def days_in_words(results: Results) -> str:
    """When the rows were measured: a day, or the first and the last."""
    between = results.measured_between()
    if between is None:
        return "no day yet"
    first, last = (datetime.fromtimestamp(at_unix_s, UTC).date().isoformat() for at_unix_s in between)
    return first if first == last else f"{first} to {last}"


_STYLES = {MetricVerdict.BETTER: "bold green", MetricVerdict.WORSE: "bold red"}
_HEADINGS = ("TTFT p50", "TPOT p50", "ITL p99", "tokens/s")
_NAME_CELLS, _FIGURE_CELLS = 22, 13


def render(cases: Sequence[Case], results: Results) -> RenderableType:
    """Every lever, the basis of each row, and the results that differ from the prediction."""
    rows = findings(cases, results)
    parts: list[RenderableType] = [Text(_title(results), style="bold"), _grid(("", *_HEADINGS))]
    for case in cases:
        parts += _case([finding for finding in rows if finding.case is case], case, results)
    notes = (Text(note) for note in reading_notes(cases, results))
    return Group(*parts, Text(""), *notes)


def _title(results: Results) -> str:
    where = results.circumstances
    return (
        f"What each lever does when it is switched on: {where.model}, vLLM {where.vllm} on {where.device}, "
        f"{where.pairs} pairs of blocks, {days_in_words(results)}"
    )


def _case(rows: Sequence[LeverFinding], case: Case, results: Results) -> Iterator[RenderableType]:
    yield Text.assemble("\n", (case.title, "bold"), f" ({case.phase})")
    if case.by_counters:
        why = results.not_measured.get(case.name, "not measured yet")
        yield _aside(paging_sentence(results.paging) or why)
        return
    if modelled := modelled_in_words(case.name):
        yield _aside(modelled)
    if case.engines_key in results.cases:
        described = words.outputs_in_words(rows[0].outputs, quality=case.quality)
        yield _aside(f"KV capacity {words.capacity_in_words(rows[0])}; answers: {described}")
    for finding in rows:
        yield from _row(finding)


def _row(finding: LeverFinding) -> Iterator[RenderableType]:
    if finding.measured is None and finding.missing:
        yield _aside(f"{finding.row.workload.name}: not measured: {finding.missing}")
        return
    yield _grid((_name(finding), *_figures(finding)))
    style = "yellow" if finding.agreement is Agreement.DIFFERS else ""
    yield _aside(f"physics: {words.conclusion(finding)}", style)
    yield from (_aside(f"note: {note}") for note in words.footnotes(finding))


def _grid(cells: Sequence[RenderableType]) -> Table:
    """One line of figures; all lines have the same column widths."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_NAME_CELLS)
    for _ in SHOWN:
        grid.add_column(width=_FIGURE_CELLS, justify="right")
    grid.add_row(*cells)
    return grid


def _aside(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, 2))


def _name(finding: LeverFinding) -> str:
    return f"  {finding.row.workload.name}\n  ({words.shows(finding.row)})"


def _figures(finding: LeverFinding) -> list[RenderableType]:
    if finding.measured is not None and finding.hides_speed:
        return [Text(words.PRICE_UNKNOWN)] * len(SHOWN)
    return [_effect(finding.effects.get(metric)) for metric in SHOWN]


def _effect(effect: LeverEffect | None) -> Text:
    if effect is None or effect.verdict is MetricVerdict.UNKNOWN:
        return Text("–")
    lines = (words.change_in_words(effect), words.WORDS[effect.verdict], words.interval_in_words(effect))
    return Text("\n".join(lines), style=_STYLES.get(effect.verdict, ""))


def render_list(cases: Sequence[Case]) -> RenderableType:
    """The catalogue: what would be measured, and what physics predicts."""
    parts: list[RenderableType] = []
    for case in cases:
        parts.append(
            Text.assemble("\n" if parts else "", (case.lever, "bold"), f": {case.title} ({case.phase})")
        )
        parts.append(_aside(f"off: {case.off.in_words}\non:  {case.on.in_words}"))
        if case.device is not None:
            parts.append(_aside(f"only with an engine for {case.device}"))
        if case.by_counters:
            parts.append(_aside("read from the engine's own count of KV blocks, with mixed traffic"))
        for row in case.rows:
            expected = words.expected_in_words(row) or "no clear change"
            described = f"{row.workload.name}: {row.workload.about}\n{words.shows(row)}; expected: {expected}"
            parts.append(Padding(Text(f"{described}\nbecause {row.why}"), (0, 0, 0, 4)))
    return Group(*parts)
