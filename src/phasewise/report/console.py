"""The terminal: results go to stdout, progress and errors to stderr; tables read without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from phasewise.core.errors import PhasewiseError

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
