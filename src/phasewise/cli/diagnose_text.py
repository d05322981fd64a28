"""Paragraphs, facts and bullets that wrap to a screen's width, with what belongs together indented alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from rich.text import Text

SCREEN_CELLS = 100
"""Wider lines are hard to read, however wide the screen."""
NAME_CELLS = 11
HEADING_CELLS = 16


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
    """A heading with what is said beside it."""
    lines = list(paragraph(f"{name}  {rest}".rstrip(), width, rest="  "))
    lines[0].stylize("bold", 0, len(name))
    yield from lines


def fact(name: str, words: str, width: int) -> Iterator[Text]:
    """A name and what there is to say of it, in two columns."""
    lines = list(paragraph(words, width, first=f"{name:<{NAME_CELLS}}", rest=" " * NAME_CELLS))
    lines[0].stylize("dim", 0, len(name))
    yield from lines


def bullets(items: Iterable[str], width: int) -> Iterator[Text]:
    """One bullet for each item."""
    for item in items:
        yield from paragraph(item, width, first="  - ", rest="    ")


def beside(name: str, items: Iterable[str], width: int) -> Iterator[Text]:
    """Bullets that stand beside their heading, which saves a line; nothing without any."""
    indent = " " * HEADING_CELLS
    for place, item in enumerate(items):
        first = f"{name:<{HEADING_CELLS}}- " if place == 0 else f"{indent}- "
        lines = list(paragraph(item, width, first=first, rest=f"{indent}  "))
        if place == 0:
            lines[0].stylize("bold", 0, len(name))
        yield from lines


def at_most(items: tuple[str, ...], many: int) -> tuple[str, ...]:
    """The first of the items, and how many there are besides."""
    if len(items) <= many:
        return items
    return (*items[: many - 1], f"and {len(items) - many + 1} more, in --json and --report")
