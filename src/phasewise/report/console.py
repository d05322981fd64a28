"""The terminal: results go to stdout, progress and errors to stderr; everything reads without colour."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from phasewise.core.errors import PhasewiseError
from phasewise.core.units import elapsed

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(error: PhasewiseError) -> None:
    """Print a domain error the way every command does."""
    err.print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True)
    if error.hint:
        err.print(f"[bold]hint:[/] {escape(error.hint)}", soft_wrap=True)


_GAP = "  "


def text_table(
    title: str | None, heads: Sequence[str], *, words: int = 1, borders: bool = True, fold: bool = False
) -> Table:
    """A table whose first `words` columns are text and whose others are figures, which `fold` may break."""
    table = Table(title=title, title_justify="left")
    if not borders:
        table.box, table.pad_edge = None, False
    for place, head in enumerate(heads):
        figure = place >= words
        table.add_column(
            head, justify="right" if figure else "left", overflow="fold" if fold and figure else "ellipsis"
        )
    return table


def aligned(
    heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str], state: int | None = None
) -> Iterator[Text]:
    """Rows that are never truncated, so that they can be copied at any width.

    A row has its style, or only its cell at `state`.
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    yield Text(_line(heads, widths), style="bold")
    for row, style in zip(rows, styles, strict=True):
        line = Text(_line(row, widths))
        begin = 0 if state is None else sum(widths[:state]) + state * len(_GAP)
        line.stylize(style, begin, len(line) if state is None else begin + len(row[state]))
        yield line


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


# --- Progress: a line that is redrawn twice a second, and the stages of a long task.

REDRAW_S = 0.5
PLAIN_EVERY_S = 10.0
"""Without a terminal, a line is added this often."""


@asynccontextmanager
async def live_line(label: str, words: Callable[[], str], stream: TextIO) -> AsyncIterator[None]:
    """Show the progress from `words` until the block ends."""
    draw = _redraw if stream.isatty() else _append
    drawing = asyncio.create_task(draw(label, words, stream))
    try:
        yield
    finally:
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
        if stream.isatty():
            stream.write("\r\x1b[K")
            stream.flush()


async def _redraw(label: str, words: Callable[[], str], stream: TextIO) -> None:
    while True:
        width = shutil.get_terminal_size().columns - 1
        stream.write("\r\x1b[K" + f"{label}: {words()}"[:width])
        stream.flush()
        await asyncio.sleep(REDRAW_S)


async def _append(label: str, words: Callable[[], str], stream: TextIO) -> None:
    while True:
        await asyncio.sleep(PLAIN_EVERY_S)
        stream.write(f"{label}: {words()}\n")
        stream.flush()


# --- Shows the stages of a long task on stderr: one line per stage with its time and latest detail.
#


class StageLines:
    """A spinner with the latest detail on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console = err) -> None:
        self._console = console
        self._status: Status | None = None
        self._label = ""
        self._started_s = 0.0

    def __enter__(self) -> StageLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def started(self, number: int, total: int, title: str) -> None:
        self._label = f"[{number}/{total}] {title}"
        self._started_s = time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(escape(self._label))
            self._status.start()
        else:
            self._console.print(self._label, markup=False, soft_wrap=True)

    def detail(self, line: str) -> None:
        if self._status is not None:
            width = max(20, self._console.width - len(self._label) - 16)
            self._status.update(
                f"{escape(self._label)} [dim]{self._elapsed()}  {escape(line.strip()[:width])}[/]"
            )

    def finished(self, outcome: str) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        self._console.print(f"{self._label}: {outcome} ({self._elapsed()})", markup=False, soft_wrap=True)

    def _elapsed(self) -> str:
        return elapsed(time.monotonic() - self._started_s)
