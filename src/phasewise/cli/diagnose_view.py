"""A verdict on one screen, readable without colour.

The finding behind the ruling is told in full, the others in a line each; the page of `--report` and `--json`
hold everything. The words that the page uses too stand in observe/page.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from phasewise.bench.page.numbers import bound, duration
from phasewise.cli.diagnose_advice import advice_lines
from phasewise.cli.diagnose_text import SCREEN_CELLS, at_most, beside, bullets, fact, paragraph, title
from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.picture import Picture, StartPicture, StreamPicture
from phasewise.diagnosis.verdict import Ruling, Verdict
from phasewise.model.slo import Slo
from phasewise.observe.page import words
from phasewise.observe.page.engine_lines import engines_in_words
from phasewise.observe.page.ledger_rows import LedgerRow, share_in_words, start_rows, stream_rows, worth_a_row
from phasewise.observe.page.phase_words import tpot_in_words, ttft_in_words
from phasewise.observe.page.workload_words import workload_in_words

BAR_CELLS = 20
LABEL_CELLS = 25
FIGURE_CELLS = 17
"""A bar's time and share, with the space around them."""
FEWEST_BAR_CELLS = 4
FACTS = 5
"""The facts of the top finding that fit the screen; they come strongest first."""
UNKNOWNS = 4
STYLES = {Ruling.HEALTHY: "bold green", Ruling.TOO_LITTLE_SEEN: "bold yellow"}


def show(console: Console, verdict: Verdict, subject: str) -> None:
    """Print the whole verdict, wrapped to the screen but never wider than is pleasant to read."""
    width = min(console.width, SCREEN_CELLS)
    for line in _lines(verdict, subject, width):
        console.print(line, soft_wrap=True)


def _lines(verdict: Verdict, subject: str, width: int) -> Iterator[Text]:
    picture = verdict.picture
    yield from _head(verdict, subject, width)
    yield Text()
    yield from fact("workload", workload_in_words(picture), width)
    for implied in picture.profile.implications if picture.profile is not None else ():
        yield from fact("", implied, width)
    for place, line in enumerate(engines_in_words(picture.engines)):
        yield from fact("" if place else "engines", line, width)
    if picture.start is not None:
        yield from _start_lines(picture.start, verdict.slo, width)
    if picture.stream is not None:
        yield from _stream_lines(picture.stream, verdict.slo, width)
    yield from _why(verdict, width)
    yield from advice_lines(verdict, width)
    yield from _not_known(picture, width)


def _head(verdict: Verdict, subject: str, width: int) -> Iterator[Text]:
    picture = verdict.picture
    told = words.headline(verdict)
    if verdict.top is not None:
        told += f" (confidence {verdict.top.confidence})"
    if verdict.also_slow is not None:
        told += f"; {words.also_slow(verdict)}"
    yield from paragraph(told, width, style=STYLES.get(verdict.ruling, "bold red"))
    outcomes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in picture.outcomes)
    seen = f"{subject}: {outcomes or 'no requests'} in {picture.window_s:.0f} s, seen by {picture.seen_by}"
    yield from paragraph(seen, width, style="dim")
    for caveat in words.caveats(verdict):
        yield from paragraph(caveat, width, style="yellow")


def _start_lines(start: StartPicture, slo: Slo, width: int) -> Iterator[Text]:
    yield Text()
    told = f"{ttft_in_words(start)}; objective {bound(slo.ttft_s)}"
    yield from title("Time to first token", told, width)
    yield from _bars(start_rows(start), start.parts_mean_s, width)


def _stream_lines(stream: StreamPicture, slo: Slo, width: int) -> Iterator[Text]:
    yield Text()
    told = f"{tpot_in_words(stream)}; objective {bound(slo.tpot_s)}"
    yield from title("Time per output token", told, width)
    yield from _bars(stream_rows(stream), stream.tpot_mean_s, width)


def _bars(rows: tuple[LedgerRow, ...], whole_s: float, width: int) -> Iterator[Text]:
    if rows:
        yield from (_bar(row, whole_s, width) for row in worth_a_row(rows, whole_s))


def _bar(row: LedgerRow, whole_s: float, width: int) -> Text:
    """A row as a bar; on a narrow screen the bar shrinks and who says so is left out."""
    share = row.seconds / whole_s if whole_s > 0 else 0.0
    room = max(min(BAR_CELLS, width - LABEL_CELLS - FIGURE_CELLS - 2), FEWEST_BAR_CELLS)
    cells = round(min(max(share, 0.0), 1.0) * room)
    line = Text(f"  {row.name:<{LABEL_CELLS}}")
    line.append("█" * cells, "red" if share >= 0.5 else "cyan")
    line.append(
        " " * (room - cells) + f" {duration(row.seconds):>9} {share_in_words(row.seconds, whole_s):>5}"
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
        yield from bullets(_evidence(top), width)
    yield from bullets(map(_in_a_line, others), width)
    if missing:
        yield from bullets((missing,), width)


def _evidence(found: Finding) -> Iterator[str]:
    yield from (f"{stated.words} [{stated.source}]" for stated in found.facts[:FACTS])
    if len(found.facts) > FACTS:
        yield f"and {len(found.facts) - FACTS} more facts, in --json and --report"
    yield f"refuted if {found.refuted_by}"


def _in_a_line(found: Finding) -> str:
    return f"also: {words.CAUSES[found.cause]}, {words.weight(found)} (confidence {found.confidence})"


def _not_known(picture: Picture, width: int) -> Iterator[Text]:
    return beside("Not known", at_most(picture.not_known, UNKNOWNS), width)
