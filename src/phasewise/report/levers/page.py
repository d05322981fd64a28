"""The levers as one HTML file that opens offline: the table as a chart, then every row in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from textwrap import wrap
from typing import Any

from phasewise.experiments.levers import findings as words
from phasewise.experiments.levers.catalogue import SHOWN, Case
from phasewise.experiments.levers.findings import LeverFinding, findings
from phasewise.experiments.levers.modelled import modelled_in_words
from phasewise.experiments.levers.notes import paging_sentence, reading_notes
from phasewise.experiments.levers.results import LeverEffect, Results
from phasewise.loadgen.statistics.comparison import MetricVerdict
from phasewise.report.bench.page import definitions, repeat_section, whole_page
from phasewise.report.bench.sections import chart, section
from phasewise.report.figures import Chart, plain
from phasewise.report.levers.table import days_in_words
from phasewise.report.markup import Html, element, table, together

# --- The table of levers as a chart: a grid of effects, coloured by whether they help and how much.
#


HEADINGS = ("TTFT", "TPOT", "ITL p99", "tokens/s", "KV capacity", "answers")
COLOURS = {
    MetricVerdict.BETTER: "--decode",
    MetricVerdict.WORSE: "--objective",
    MetricVerdict.EQUIVALENT: "--client-lag",
}
FAINTEST, FULLEST = 0.15, 0.75
FULL_AT = 4.0
"""A change by this factor has the full colour."""
ROW_PIXELS = 46
NAME_CHARACTERS = 28
"""A longer title is wrapped, so that figures fit on a phone."""
QUESTION = "Which lever helps which phase, with which traffic?"
CAPTION = (
    "Each cell is the change when the lever is switched on. Green helps, orange hurts, grey is no effect, "
    "white is inconclusive or not measured; the stronger the colour, the larger the change. Intervals show "
    "on hover. Traffic in brackets was chosen so that the lever should have no effect; ppl is the perplexity "
    "of a text that no model was trained on."
)

Cell = tuple[str, str, str, float]
"""A cell's text, what it says on hover, its colour and how strong that is."""


def effects_picture(rows: Sequence[LeverFinding]) -> Chart:
    """Rows of the table from top to bottom, figures from left to right."""
    cells = [(x, y, *_drawn_cell(finding, x)) for y, finding in enumerate(rows) for x in range(len(HEADINGS))]
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


def _drawn_cell(finding: LeverFinding, column: int) -> Cell:
    place = plain(f"{finding.case.title}, {finding.row.workload.name}")
    if column == len(SHOWN):
        return _capacity(finding, place)
    if column > len(SHOWN):
        return _drawn_answers(finding, place)
    effect = finding.effects.get(SHOWN[column])
    if effect is None or effect.verdict is MetricVerdict.UNKNOWN:
        why = words.conclusion(finding) if effect is None or not effect.reason else effect.reason
        return "–", f"{place}<br>{plain(why)}", "", 0.0
    values = f"{words.value_in_words(effect, effect.off)} -> {words.value_in_words(effect, effect.on)}"
    described = f"{words.WORDS[effect.verdict]}: {words.interval_in_words(effect)}"
    hover = f"{place}<br>{plain(words.LABELS[effect.metric])}: {plain(values)}<br>{plain(described)}"
    return words.change_in_words(effect), hover, COLOURS.get(effect.verdict, ""), _strength(effect)


def _capacity(finding: LeverFinding, place: str) -> Cell:
    facts, text = finding.facts, words.capacity_in_words(finding)
    if facts is None or not facts.kv_tokens_off or not facts.kv_tokens_on:
        return text, place, "", 0.0
    ratio = facts.kv_tokens_on / facts.kv_tokens_off
    colour = "" if ratio == 1 else COLOURS[MetricVerdict.BETTER if ratio > 1 else MetricVerdict.WORSE]
    hover = f"{place}<br>KV cache: {facts.kv_tokens_off:,} -> {facts.kv_tokens_on:,} tokens"
    return text, hover, colour, _depth(ratio)


def _drawn_answers(finding: LeverFinding, place: str) -> Cell:
    outputs = finding.outputs
    if outputs is None:
        return "–", place, "", 0.0
    quality = finding.case.quality
    changed = outputs.equal < outputs.answers or (quality and outputs.low is not None and outputs.low > 0)
    colour = COLOURS[MetricVerdict.WORSE] if changed else ""
    hover = f"{place}<br>{plain(outputs.sentence or outputs.reason)}"
    return words.answers_in_short(outputs, quality=quality), hover, colour, FAINTEST


def _strength(effect: LeverEffect) -> float:
    if effect.verdict is MetricVerdict.EQUIVALENT or effect.change is None:
        return FAINTEST
    return _depth(1 + effect.change)


def _depth(ratio: float) -> float:
    share = min(abs(log(max(ratio, 1e-3))) / log(FULL_AT), 1.0)
    return round(FAINTEST + (FULLEST - FAINTEST) * share, 3)


def _square(x: int, y: int, colour: str, strength: float) -> dict[str, Any]:
    corners = {"x0": x - 0.48, "x1": x + 0.48, "y0": y - 0.46, "y1": y + 0.46}
    look = {"fillcolor": colour, "opacity": strength, "line": {"width": 0}, "layer": "below"}
    return {"type": "rect", **corners, **look}


def _layout(rows: Sequence[LeverFinding], shapes: list[dict[str, Any]]) -> dict[str, Any]:
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


def _row_name(finding: LeverFinding) -> str:
    """The lever's title above the traffic, narrow enough for a phone."""
    traffic = finding.row.workload.name
    named = traffic if finding.row.can_show else f"({traffic})"
    return _lines([*wrap(finding.case.title, NAME_CHARACTERS), named])


def _lines(texts: Sequence[str]) -> str:
    return "<br>".join(map(plain, texts))


TITLE = "What each lever does"


def render_page(cases: Sequence[Case], results: Results, command: str) -> str:
    """The whole page."""
    rows = findings(cases, results)
    parts = (
        _header(cases, results),
        section("The table as a chart", chart(effects_picture(rows))),
        section("Every row with its intervals", _figures(rows)),
        section("What physics predicts, and what was measured", _physics(rows)),
        definitions(),
        repeat_section(command),
    )
    return whole_page(TITLE, together(parts))


def _header(cases: Sequence[Case], results: Results) -> Html:
    where = results.circumstances
    button = element("button", "light / dark", id="scheme", type="button", hidden=True)
    facts = {
        "Measured": days_in_words(results),
        "Machine": ", ".join(where.gpus) or f"{where.processor}, {where.cores} cores",
        "Memory": f"{where.memory_gib} GiB",
        "vLLM": f"{where.vllm} ({where.device})",
        "phasewise": where.phasewise,
        "Pairs of blocks": str(where.pairs),
        "Seed": str(where.seed),
    }
    pairs = (element("div", element("dt", name), element("dd", value)) for name, value in facts.items())
    paging = paging_sentence(results.paging)
    notes = (*((paging,) if paging else ()), *reading_notes(cases, results))
    return element(
        "header",
        element("div", element("h1", TITLE), button, class_="top"),
        element("p", f"{where.model}, every lever off and on with the same requests", class_="where"),
        element("noscript", element("p", "The chart needs JavaScript; the figures do not.")),
        element("dl", *pairs, class_="facts"),
        element("ul", *(element("li", note) for note in notes), class_="notes"),
    )


def _figures(rows: Sequence[LeverFinding]) -> Html:
    notes = [
        f"{finding.case.title}, {finding.row.workload.name}: {note}"
        for finding in rows
        for note in words.footnotes(finding)
    ]
    figures = table(("lever, traffic", *HEADINGS), [_row(finding) for finding in rows])
    return together((figures, element("ul", *(element("li", note) for note in notes), class_="notes")))


def _row(finding: LeverFinding) -> list[str]:
    return [
        _name(finding),
        *(_cell(finding, name) for name in SHOWN),
        words.capacity_in_words(finding),
        _answers(finding),
    ]


def _name(finding: LeverFinding) -> Html:
    traffic = f"{finding.row.workload.name}, {words.shows(finding.row)}"
    return together((finding.case.title, element("small", traffic)))


def _cell(finding: LeverFinding, metric: str) -> Html:
    effect = finding.effects.get(metric)
    if finding.measured is not None and finding.hides_speed:
        return together((words.PRICE_UNKNOWN,))
    if effect is None or effect.change is None:
        return together((words.change_in_words(effect),))
    described = f"{words.WORDS[effect.verdict]}, {words.interval_in_words(effect)}"
    return together((words.change_in_words(effect), element("small", described)))


def _answers(finding: LeverFinding) -> Html:
    described = words.outputs_in_words(finding.outputs, quality=finding.case.quality)
    equal, _, price = described.partition(", ")
    return together((equal, *([element("small", price)] if price else [])))


def _physics(rows: Sequence[LeverFinding]) -> Html:
    body = [
        (
            _name(finding),
            f"{words.expected_in_words(finding.row) or 'no clear change'}: {finding.row.why}",
            words.conclusion(finding),
            modelled_in_words(finding.case.name),
        )
        for finding in rows
    ]
    return table(("row", "expected", "measured", "modelled"), body, words=4)
