"""HTML in which every string is escaped unless it is markup already, and what every page has.

A page is one file that opens anywhere, offline, with its verdict first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from shlex import quote
from string import Template

import orjson

from phasewise.benchmark.results import DEFINITIONS
from phasewise.core.units import duration

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


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, narrow: bool = False) -> Html:
    """A table whose first column is text and whose others are figures; it scrolls if too wide."""

    def cells(name: str, row: Sequence[str]) -> Html:
        figures = (element(name, cell, class_="figure") for cell in row[1:])
        return element("tr", element(name, row[0]), *figures)

    body = element("tbody", *(cells("td", row) for row in rows))
    scrolling = element("div", element("table", element("thead", cells("th", head)), body), class_="scroll")
    return element("div", scrolling, class_="narrow") if narrow else scrolling


def embedded_json(value: object) -> Html:
    """JSON that is safe inside a script element."""
    return Html(orjson.dumps(value).decode().replace("<", "\\u003c"))


def _markup(part: str) -> str:
    return part if isinstance(part, Html) else escape(part)


# --- What every page has.

_ASSETS = files("phasewise.report") / "assets"


def whole_page(title: str, content: Html) -> str:
    """A page around its content, with everything that it needs to open offline."""
    template, style, script = (
        (_ASSETS / name).read_text(encoding="utf-8") for name in ("page.html", "style.css", "page.js")
    )
    return Template(template).substitute(title=escape(title), style=style, content=content, script=script)


def strip(tone: str, about: Sequence[str], headline: str, *more: str) -> Html:
    """The first thing on a page: what was measured in a line, what came of it, and how sure that is.

    `tone` is the colour: start, stream, failing, healthy, unknown, or measured for a page without a verdict.
    """
    first, *others = about
    button = element("button", "light / dark", id="scheme", type="button", hidden=True)
    return element(
        "header",
        button,
        element("p", element("strong", first), *(element("span", text) for text in others), class_="about"),
        element("h1", headline),
        *(element("p", text) for text in more if text),
        class_=f"strip {tone}",
    )


def facts(pairs: Mapping[str, str]) -> Html:
    """The circumstances of a measurement."""
    listed = (element("div", element("dt", name), element("dd", value)) for name, value in pairs.items())
    return element("dl", *listed, class_="facts")


def section(title: str, *content: str) -> Html:
    return element("section", element("h2", title), *content)


def defined(meanings: Mapping[str, str] = DEFINITIONS) -> Html:
    pairs = (
        part for name, meaning in meanings.items() for part in (element("dt", name), element("dd", meaning))
    )
    return section("Definitions", element("dl", *pairs, class_="definitions"))


def repeat_section(command: str) -> Html:
    """The command that repeats the measurement."""
    return section("Repeat this run", element("pre", element("code", command)), _copy(command, "copy"))


def request(request_id: str, *, kept: bool = True) -> Html:
    """A request's id and, if a gateway has kept it, the command that explains it; a click copies either."""
    command = f"phasewise explain {quote(request_id)}"
    return element(
        "span",
        element("code", request_id),
        _copy(request_id, "copy id"),
        _copy(command, element("code", command)) if kept else "",
        class_="request",
    )


def _copy(text: str, label: str) -> Html:
    return element("button", label, type="button", class_="copy", data_copy=text, title=f"copy {text}")


def swatched(colour: str, name: str) -> Html:
    """A name with its colour in the charts."""
    return together((element("i", class_="swatch", style=f"background:var({colour})"), name))


def stacked(parts: Iterable[tuple[str, float, str]], whole_s: float, label: str) -> Html:
    """Parts of a time as one bar: each one's name, seconds and colour."""
    pieces = (
        element(
            "span",
            style=f"width:{100 * seconds / whole_s:.3f}%;background:var({colour})",
            title=f"{name}: {duration(seconds)}",
        )
        for name, seconds, colour in parts
        if seconds > 0
    )
    return element("div", *pieces, class_="stack", role="img", aria_label=label)


def moment(unix_s: float) -> str:
    """A moment on a page, which may be opened anywhere."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))
