"""What rules for matching did to pairs of questions, as one HTML file that opens offline.

Frame, style and script are the bench report's; the words are evaluation_view.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from phasewise import __version__
from phasewise.bench.page.figures import Chart, axis, figure, plain
from phasewise.bench.page.markup import Html, element, table, together
from phasewise.bench.page.numbers import NONE, share
from phasewise.bench.page.sections import chart_grid, section
from phasewise.bench.report_page import repeat_section, whole_page
from phasewise.caching.evaluation import Evaluation, Guarding, KindCount
from phasewise.cli.evaluation_view import DRAWN_COSINE, GUARDS_WORDS, conclusion, worst_words

TITLE = "What a cache of answers would take for the same question"
COLOURS = {Guarding.NONE: "--bad", Guarding.BUT_CONTENT: "--warn", Guarding.ALL: "--accent"}


def render_page(evaluations: Sequence[Evaluation], file: str, space: str, command: str) -> str:
    """The whole page."""
    drawn = [it for it in evaluations if it.rule.min_similarity == DRAWN_COSINE]
    charts = [
        _by_kind(drawn, "Which near misses would be served?", "others", lambda it: it.false_hit_share),
        _by_kind(drawn, "Which paraphrases would be served?", "duplicates", lambda it: it.recall),
    ]
    parts = (
        _header(evaluations, drawn, file, space),
        section("By kind of pair", chart_grid([it for it in charts if it is not None])),
        section("Every rule", _rules(evaluations)),
        section("Every kind under every rule", _kinds(evaluations)),
        repeat_section(command),
    )
    return whole_page(TITLE, together(parts))


def _header(evaluations: Sequence[Evaluation], drawn: Sequence[Evaluation], file: str, space: str) -> Html:
    button = element("button", "light / dark", id="scheme", type="button", hidden=True)
    total = evaluations[0].total
    facts = {
        "Pairs": f"{total.duplicates + total.others:,} of {file}",
        "Embedder": space,
        "Made": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "phasewise": __version__,
    }
    pairs = (element("div", element("dt", name), element("dd", value)) for name, value in facts.items())
    return element(
        "header",
        element("div", element("h1", TITLE), button, class_="top"),
        *(element("p", line, class_="verdict") for line in conclusion(drawn)),
        element("noscript", element("p", "The charts need JavaScript; the figures do not.")),
        element("dl", *pairs, class_="facts"),
    )


def _by_kind(
    drawn: Sequence[Evaluation], question: str, counted: str, value: Callable[[KindCount], float | None]
) -> Chart | None:
    traces = [
        {
            "type": "bar",
            "name": GUARDS_WORDS[it.rule.guarding],
            "x": [plain(kind.kind) for kind in it.kinds if getattr(kind, counted)],
            "y": [100 * (value(kind) or 0.0) for kind in it.kinds if getattr(kind, counted)],
            "marker": {"color": COLOURS[it.rule.guarding]},
            "hovertemplate": "%{x}: %{y:.1f}%<extra>%{fullData.name}</extra>",
        }
        for it in drawn
    ]
    if not traces or not traces[0]["x"]:
        return None
    shares = axis("share of the kind's pairs, %", range=[0, 100])
    caption = f"At a cosine of {DRAWN_COSINE:.2f}, which is the usual advice, without and with guards."
    return Chart(question, caption, figure(traces, axis("", rangemode="normal"), shares, barmode="group"))


def _rules(evaluations: Sequence[Evaluation]) -> Html:
    rows = [
        (
            it.rule.name,
            worst_words(it),
            share(it.total.precision),
            share(it.total.recall),
            f"{it.total.false_hits:,} of {it.total.others:,}",
        )
        for it in evaluations
    ]
    return table(("rule", "worst kind", "precision", "recall", "false hits"), rows, words=2)


def _kinds(evaluations: Sequence[Evaluation]) -> Html:
    rows = [
        (
            kind.kind,
            it.rule.name,
            _of(kind.hits, kind.duplicates),
            _of(kind.false_hits, kind.others),
        )
        for it in evaluations
        for kind in it.kinds
    ]
    return table(("kind", "rule", "hits", "false hits"), rows, words=2)


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" if whole else NONE
