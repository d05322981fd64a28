"""A verdict on one screen, readable without colour.

The finding behind the ruling is shown in full, the others in a line each; `--html` and `--json` show
everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from phasewise.core.units import bound, duration, elapsed
from phasewise.diagnosis.advice.fix import Fix
from phasewise.diagnosis.verdict import Ruling, Verdict
from phasewise.report.diagnosis import words
from phasewise.report.diagnosis.surroundings import engines_in_words, workload_in_words
from phasewise.report.diagnosis.words import how_in_words, prediction_in_words, tpot_in_words, ttft_in_words
from phasewise.report.time_parts import (
    LedgerRow,
    share_in_words,
    start_rows,
    stream_rows,
    worth_a_row,
)

# --- Paragraphs, facts and bullets, wrapped to the screen's width.

SCREEN_CELLS = 100
"""Wider lines are hard to read."""
NAME_CELLS = 11
HEADING_CELLS = 18


def paragraph(words: str, width: int, *, style: str = "", first: str = "", rest: str = "") -> Iterator[Text]:
    """Wrapped words; `first` stands before the first line, `rest` before the others."""
    lines = wrap(
        words,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
    yield from (Text(line, style) for line in lines)


def title(name: str, rest: str, width: int) -> Iterator[Text]:
    """A heading with text beside it."""
    lines = list(paragraph(f"{name}  {rest}".rstrip(), width, rest="  "))
    lines[0].stylize("bold", 0, len(name))
    yield from lines


def fact(name: str, words: str, width: int) -> Iterator[Text]:
    """A name and its text, in two columns."""
    lines = list(paragraph(words, width, first=f"{name:<{NAME_CELLS}}", rest=" " * NAME_CELLS))
    lines[0].stylize("dim", 0, len(name))
    yield from lines


def bullets(items: Iterable[str], width: int) -> Iterator[Text]:
    """One bullet for each item."""
    for item in items:
        yield from paragraph(item, width, first="  - ", rest="    ")


def beside(name: str, items: Iterable[str], width: int) -> Iterator[Text]:
    """Bullets beside their heading, which saves a line; nothing without items."""
    indent = " " * HEADING_CELLS
    for place, item in enumerate(items):
        first = f"{name:<{HEADING_CELLS}}- " if place == 0 else f"{indent}- "
        lines = list(paragraph(item, width, first=first, rest=f"{indent}  "))
        if place == 0:
            lines[0].stylize("bold", 0, len(name))
        yield from lines


def at_most(items: tuple[str, ...], many: int) -> tuple[str, ...]:
    """The first items, and the number of those left out."""
    if len(items) <= many:
        return items
    return (*items[: many - 1], f"and {len(items) - many + 1} more, in --json and --html")


# --- What to do: fixes with their predicted effects, and what would not help.

FIXES = 4
"""The screen shows at most this many fixes; the page shows all."""
USELESS = 3
"""The screen names at most this many levers that would not help; the page names all."""


def advice_lines(verdict: Verdict, width: int) -> Iterator[Text]:
    """The next step: the first fix in full, the others in short."""
    next_step = words.what_next(verdict)
    if next_step:
        yield Text()
        yield from title("Next", next_step, width)
    advice = verdict.advice
    if advice is None:
        return
    if advice.fixes:
        yield Text()
        yield from title("What to do", "", width)
        for place, fix in enumerate(advice.fixes[:FIXES], start=1):
            yield from _in_full(place, fix, width) if place == 1 else _in_short(place, fix, width)
    if advice.do_not_pay:
        yield Text()
        unpaid = tuple(f"{fix.what}: {prediction_in_words(fix)}" for fix in advice.do_not_pay)
        yield from beside("Does not pay here", at_most(unpaid, USELESS), width)
    if advice.would_not_help:
        yield Text()
        yield from beside("Would not help", at_most(advice.would_not_help, USELESS), width)


def _in_full(place: int, fix: Fix, width: int) -> Iterator[Text]:
    yield from paragraph(fix.what, width, first=f"  {place}. ", rest="     ", style="bold")
    for how in how_in_words(fix):
        yield from _detail(how, width)
    if fix.effect is not None or fix.unpredictable:
        yield from _detail(prediction_in_words(fix), width)
    yield from _detail(f"price: {fix.price}", width)
    if fix.verify:
        yield from _detail(f"verify: {fix.verify}", width)


def _detail(described: str, width: int) -> Iterator[Text]:
    return paragraph(described, width, first="     ", rest="       ")


def _in_short(place: int, fix: Fix, width: int) -> Iterator[Text]:
    """A fix in a line, with its price if it fits; --html always shows the price."""
    first = f"  {place}. "
    flag = f" [{fix.engine_flag}]" if fix.engine_flag else ""
    effect = f"; {prediction_in_words(fix)}" if fix.effect is not None else ""
    described = f"{fix.what}{flag}{effect}"
    priced = f"{described}; price: {fix.price}"
    fits = len(first) + len(priced) <= width
    yield from paragraph(priced if fits else described, width, first=first, rest="     ")


BAR_CELLS = 20
LABEL_CELLS = 25
FIGURE_CELLS = 17
"""The width of a bar's time and share."""
FEWEST_BAR_CELLS = 4
FACTS = 5
"""The largest number of facts shown for the top finding, strongest first."""
UNKNOWNS = 4
STYLES = {
    Ruling.HEALTHY: "bold green",
    Ruling.NOT_ENOUGH_TRAFFIC: "bold yellow",
    Ruling.MACHINE_BUSY: "bold yellow",
}


def show(console: Console, verdict: Verdict, subject: str) -> None:
    """Print the whole verdict, wrapped to a readable width."""
    width = min(console.width, SCREEN_CELLS)
    for line in _lines(verdict, subject, width):
        console.print(line, soft_wrap=True)


def _lines(verdict: Verdict, subject: str, width: int) -> Iterator[Text]:
    summary = verdict.summary
    yield from _head(verdict, subject, width)
    yield Text()
    yield from fact("workload", workload_in_words(summary), width)
    for implied in summary.profile.implications if summary.profile is not None else ():
        yield from fact("", implied, width)
    for place, line in enumerate(engines_in_words(summary.engines)):
        yield from fact("" if place else "engines", line, width)
    for place, line in enumerate(() if summary.probe is None else words.probe_in_words(summary.probe)):
        yield from fact("" if place else "measured", line, width)
    slo = verdict.slo
    if (start := summary.start) is not None:
        rows, figures = start_rows(start), ttft_in_words(start)
        yield from _phase("Time to first token", figures, slo.ttft_s, rows, start.parts_mean_s, width)
    if (stream := summary.stream) is not None:
        rows, figures = stream_rows(stream), tpot_in_words(stream)
        yield from _phase("Time per output token", figures, slo.tpot_s, rows, stream.tpot_mean_s, width)
    yield from _why(verdict, width)
    yield from advice_lines(verdict, width)
    yield from beside("Not observed", at_most(summary.not_observed, UNKNOWNS), width)


def _head(verdict: Verdict, subject: str, width: int) -> Iterator[Text]:
    summary = verdict.summary
    described = words.headline(verdict)
    if verdict.top is not None:
        described += f" (confidence {verdict.top.confidence})"
    described = "; ".join((described, *words.besides(verdict)))
    yield from paragraph(described, width, style=STYLES.get(verdict.ruling, "bold red"))
    observed = f"in {elapsed(summary.window_s)}, observed by {summary.seen_by}"
    seen = f"{subject}: {words.outcomes(summary)} {observed}"
    yield from paragraph(seen, width, style="dim")
    for caveat in words.caveats(verdict):
        yield from paragraph(caveat, width, style="yellow")


def _phase(
    name: str, figures: str, objective_s: float, rows: tuple[LedgerRow, ...], whole_s: float, width: int
) -> Iterator[Text]:
    yield Text()
    yield from title(name, f"{figures}; objective {bound(objective_s)}", width)
    if rows:
        shown = worth_a_row(rows, whole_s)
        label_cells = max(LABEL_CELLS, *(len(row.name) + 1 for row in shown))
        yield from (_bar(row, whole_s, width, label_cells) for row in shown)


def _bar(row: LedgerRow, whole_s: float, width: int, label_cells: int) -> Text:
    """A row as a bar; on a narrow screen the bar shrinks and the source is left out."""
    share = row.seconds / whole_s if whole_s > 0 else 0.0
    space = max(min(BAR_CELLS, width - label_cells - FIGURE_CELLS - 2), FEWEST_BAR_CELLS)
    cells = round(min(max(share, 0.0), 1.0) * space)
    line = Text(f"  {row.name:<{label_cells}}")
    line.append("█" * cells, "red" if share >= 0.5 else "cyan")
    line.append(
        " " * (space - cells) + f" {duration(row.seconds):>9} {share_in_words(row.seconds, whole_s):>5}"
    )
    left = width - len(line.plain) - 2
    if left >= len(row.source):
        line.append(f"  {row.source}", "dim")
    return line


def _why(verdict: Verdict, width: int) -> Iterator[Text]:
    top, missing = verdict.top, words.unexplained(verdict)
    if top is None and not missing:
        return
    others = (found for found in verdict.findings if found is not top and not words.is_caveat(found))
    yield Text()
    yield from title("Why", "" if top is None else words.cost(top, verdict), width)
    if top is not None:
        yield from bullets((f"{stated.words} [{stated.source}]" for stated in top.facts[:FACTS]), width)
        if len(top.facts) > FACTS:
            yield from bullets((f"and {len(top.facts) - FACTS} more facts, in --json and --html",), width)
        yield from bullets((f"refuted if {top.refuted_by}",), width)
    for found in others:
        share = words.brief_cost(found, verdict)
        line = f"also: {words.CAUSES[found.cause]}, {share} (confidence {found.confidence})"
        yield from bullets((line,), width)
    if missing:
        yield from bullets((missing,), width)
