"""What every HTML page has: one file that opens anywhere, offline, with its verdict first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from shlex import quote
from string import Template

from phasewise.loadgen.results import DEFINITIONS
from phasewise.report.markup import Html, element

_ASSETS = files("phasewise.report") / "assets"


def whole_page(title: str, content: Html, *, style: str = "") -> str:
    """A page around its content, with everything that it needs to open offline; `style` is added."""
    template, common, script = (
        (_ASSETS / name).read_text(encoding="utf-8") for name in ("page.html", "style.css", "page.js")
    )
    return Template(template).substitute(
        title=escape(title), style=common + style, content=content, script=script
    )


def strip(tone: str, about: Sequence[str], headline: str, *more: str) -> Html:
    """The first thing on a page: what was measured in a line, what came of it, and how sure that is.

    `tone` is the colour: start, stream, failing, healthy, unknown, or measured for a page without a verdict.
    """
    button = element("button", "light / dark", id="scheme", type="button", hidden=True)
    return element(
        "header",
        button,
        element("p", *_about(about), class_="about"),
        element("h1", headline),
        *(element("p", text) for text in more if text),
        class_=f"strip {tone}",
    )


def _about(about: Sequence[str]) -> list[Html]:
    first, *others = about
    return [element("strong", first), *(element("span", text) for text in others)]


def facts(pairs: Mapping[str, str]) -> Html:
    """The circumstances of a measurement."""
    listed = (element("div", element("dt", name), element("dd", value)) for name, value in pairs.items())
    return element("dl", *listed, class_="facts")


def section(title: str, *content: str) -> Html:
    """A part of the page under its heading."""
    return element("section", element("h2", title), *content)


def defined(meanings: Mapping[str, str] = DEFINITIONS) -> Html:
    """The definitions of the figures."""
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
