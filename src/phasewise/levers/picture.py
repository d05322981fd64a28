"""The table of levers as a picture: a grid of effects, coloured by whether they help and by how much.

What stands in a cell is findings.py's to say; the page's script draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from textwrap import wrap
from typing import Any

from phasewise.bench.comparison import Verdict
from phasewise.bench.page.figures import Chart, plain
from phasewise.levers import findings as words
from phasewise.levers.catalogue import SHOWN
from phasewise.levers.findings import Finding
from phasewise.levers.results import Effect

HEADINGS = ("TTFT", "TPOT", "ITL p99", "tokens/s", "KV room", "answers")
COLOURS = {Verdict.BETTER: "--decode", Verdict.WORSE: "--objective", Verdict.EQUIVALENT: "--client-lag"}
FAINTEST, FULLEST = 0.15, 0.75
FULL_AT = 4.0
"""A figure four times as large or as small has the full colour."""
ROW_PIXELS = 46
NAME_CHARACTERS = 28
"""A longer title is broken, as the names would leave a phone no room for figures."""
QUESTION = "Which lever helps which phase, with which traffic?"
CAPTION = (
    "Each cell is the change when the lever is switched on. Green helps, orange hurts, grey is no effect, "
    "white is inconclusive or not measured; the stronger the colour, the larger the change. Intervals show "
    "on hover. Traffic in brackets was chosen to leave the lever nothing to do; ppl is the perplexity "
    "of a text that no model has seen."
)

Cell = tuple[str, str, str, float]
"""A cell's text, what it says on hover, its colour and how strong that is."""


def effects_picture(rows: Sequence[Finding]) -> Chart:
    """Rows of the table from top to bottom, figures from left to right."""
    cells = [(x, y, *_cell(finding, x)) for y, finding in enumerate(rows) for x in range(len(HEADINGS))]
    shapes = [_square(x, y, colour, strength) for x, y, _, _, colour, strength in cells if colour]
    trace = {
        "type": "scatter",
        "mode": "text",
        "x": [x for x, *_ in cells],
        "y": [y for _, y, *_ in cells],
        "text": [_lines(text.split("\n")) for _, _, text, *_ in cells],
        "hovertext": [hover for _, _, _, hover, *_ in cells],
        "hoverinfo": "text",
        "textfont": {"size": 11, "color": "--text"},
        "showlegend": False,
    }
    return Chart(QUESTION, CAPTION, {"data": [trace], "layout": _layout(rows, shapes)})


def _cell(finding: Finding, column: int) -> Cell:
    place = plain(f"{finding.case.title}, {finding.row.workload.name}")
    if column == len(SHOWN):
        return _room(finding, place)
    if column > len(SHOWN):
        return _answers(finding, place)
    effect = finding.effects.get(SHOWN[column])
    if effect is None or effect.verdict is Verdict.UNKNOWN:
        why = words.conclusion(finding) if effect is None or not effect.reason else effect.reason
        return "–", f"{place}<br>{plain(why)}", "", 0.0
    values = f"{words.value_in_words(effect, effect.off)} -> {words.value_in_words(effect, effect.on)}"
    told = f"{words.WORDS[effect.verdict]}: {words.interval_in_words(effect)}"
    hover = f"{place}<br>{plain(words.LABELS[effect.metric])}: {plain(values)}<br>{plain(told)}"
    return words.change_in_words(effect), hover, COLOURS.get(effect.verdict, ""), _strength(effect)


def _room(finding: Finding, place: str) -> Cell:
    facts, text = finding.facts, words.capacity_in_words(finding)
    if facts is None or not facts.kv_tokens_off or not facts.kv_tokens_on:
        return text, place, "", 0.0
    ratio = facts.kv_tokens_on / facts.kv_tokens_off
    colour = "" if ratio == 1 else COLOURS[Verdict.BETTER if ratio > 1 else Verdict.WORSE]
    hover = f"{place}<br>KV cache: {facts.kv_tokens_off:,} -> {facts.kv_tokens_on:,} tokens"
    return text, hover, colour, _depth(ratio)


def _answers(finding: Finding, place: str) -> Cell:
    outputs = finding.outputs
    if outputs is None:
        return "–", place, "", 0.0
    quality = finding.case.quality
    changed = outputs.equal < outputs.answers or (quality and outputs.low is not None and outputs.low > 0)
    colour = COLOURS[Verdict.WORSE] if changed else ""
    hover = f"{place}<br>{plain(outputs.sentence or outputs.reason)}"
    return words.answers_in_short(outputs, quality=quality), hover, colour, FAINTEST


def _strength(effect: Effect) -> float:
    if effect.verdict is Verdict.EQUIVALENT or effect.change is None:
        return FAINTEST
    return _depth(1 + effect.change)


def _depth(ratio: float) -> float:
    share = min(abs(log(max(ratio, 1e-3))) / log(FULL_AT), 1.0)
    return round(FAINTEST + (FULLEST - FAINTEST) * share, 3)


def _square(x: int, y: int, colour: str, strength: float) -> dict[str, Any]:
    corners = {"x0": x - 0.48, "x1": x + 0.48, "y0": y - 0.46, "y1": y + 0.46}
    look = {"fillcolor": colour, "opacity": strength, "line": {"width": 0}, "layer": "below"}
    return {"type": "rect", **corners, **look}


def _layout(rows: Sequence[Finding], shapes: list[dict[str, Any]]) -> dict[str, Any]:
    names = [_row_name(finding) for finding in rows]
    bare = {"showgrid": False, "zeroline": False, "fixedrange": True, "automargin": True}
    return {
        "height": 100 + ROW_PIXELS * max(len(rows), 1),
        "margin": {"l": 8, "r": 8, "t": 64, "b": 8},
        "paper_bgcolor": "--surface",
        "plot_bgcolor": "--surface",
        "font": {"family": "system-ui, sans-serif", "size": 11, "color": "--muted"},
        "hoverlabel": {"font": {"color": "--text"}, "bgcolor": "--surface", "bordercolor": "--line"},
        "shapes": shapes,
        "xaxis": {
            **bare,
            "side": "top",
            "range": [-0.5, len(HEADINGS) - 0.5],
            "tickvals": list(range(len(HEADINGS))),
            "ticktext": list(HEADINGS),
        },
        "yaxis": {
            **bare,
            "range": [len(rows) - 0.5, -0.5],
            "tickvals": list(range(len(rows))),
            "ticktext": names,
        },
    }


def _row_name(finding: Finding) -> str:
    """Narrow enough for a phone: the lever's title and the traffic below each other."""
    traffic = finding.row.workload.name
    named = traffic if finding.row.can_show else f"({traffic})"
    return _lines([*wrap(finding.case.title, NAME_CHARACTERS), named])


def _lines(texts: Sequence[str]) -> str:
    return "<br>".join(map(plain, texts))
