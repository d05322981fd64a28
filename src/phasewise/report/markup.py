"""HTML in which every string is escaped unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import orjson

_VOID = frozenset({"meta", "br", "hr"})


class Html(str):
    """Text that is markup. Only this module and the page's template create it."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | bool) -> Html:
    """One element. Attributes are written as given, `class_` as class and `_` as a dash."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not False and isinstance(value, str | bool)
    )
    inside = "".join(_markup(child) for child in children)
    return Html(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{inside}</{name}>")


def together(parts: Iterable[str]) -> Html:
    return Html("".join(_markup(part) for part in parts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> Html:
    """A table whose first `words` columns are text and whose others are figures; it scrolls if too wide."""

    def cells(name: str, row: Sequence[str]) -> Html:
        kinds = ("" if place < words else "figure" for place in range(len(row)))
        return element(
            "tr",
            *(element(name, cell, class_=kind or False) for cell, kind in zip(row, kinds, strict=True)),
        )

    body = element("tbody", *(cells("td", row) for row in rows))
    whole = element("table", *([element("thead", cells("th", head))] if head else []), body)
    return element("div", whole, class_="scroll")


def embedded_json(value: object) -> Html:
    """JSON that is safe inside a script element."""
    return Html(orjson.dumps(value).decode().replace("<", "\\u003c"))


def _markup(part: str) -> str:
    return part if isinstance(part, Html) else escape(part)
