"""The levers as one HTML file that opens offline: the table as a picture, then row by row in words.

Frame, style and script are the bench report's; the words are findings.py's.
"""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.bench.page.markup import Html, element, table, together
from phasewise.bench.page.sections import chart, section
from phasewise.bench.report_page import definitions, repeat_section, whole_page
from phasewise.levers import findings as words
from phasewise.levers.catalogue import SHOWN, Case
from phasewise.levers.dates import days_in_words
from phasewise.levers.findings import Finding, findings
from phasewise.levers.modelled import modelled_in_words
from phasewise.levers.notes import paging_sentence, reading_notes
from phasewise.levers.picture import HEADINGS, effects_picture
from phasewise.levers.results import Results

TITLE = "What each lever does"


def render_page(cases: Sequence[Case], results: Results, command: str) -> str:
    """The whole page."""
    rows = findings(cases, results)
    parts = (
        _header(cases, results),
        section("The table as a picture", chart(effects_picture(rows))),
        section("Every row with its intervals", _figures(rows)),
        section("What physics expects, and what came of it", _physics(rows)),
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
        element("noscript", element("p", "The picture needs JavaScript; the figures do not.")),
        element("dl", *pairs, class_="facts"),
        element("ul", *(element("li", note) for note in notes), class_="notes"),
    )


def _figures(rows: Sequence[Finding]) -> Html:
    notes = [
        f"{finding.case.title}, {finding.row.workload.name}: {note}"
        for finding in rows
        for note in words.footnotes(finding)
    ]
    figures = table(("lever, traffic", *HEADINGS), [_row(finding) for finding in rows])
    return together((figures, element("ul", *(element("li", note) for note in notes), class_="notes")))


def _row(finding: Finding) -> list[str]:
    return [
        _name(finding),
        *(_cell(finding, name) for name in SHOWN),
        words.capacity_in_words(finding),
        _answers(finding),
    ]


def _name(finding: Finding) -> Html:
    traffic = f"{finding.row.workload.name}, {words.shows(finding.row)}"
    return together((finding.case.title, element("small", traffic)))


def _cell(finding: Finding, metric: str) -> Html:
    effect = finding.effects.get(metric)
    if finding.measured is not None and finding.hides_speed:
        return together((words.PRICE_UNKNOWN,))
    if effect is None or effect.change is None:
        return together((words.change_in_words(effect),))
    told = f"{words.WORDS[effect.verdict]}, {words.interval_in_words(effect)}"
    return together((words.change_in_words(effect), element("small", told)))


def _answers(finding: Finding) -> Html:
    told = words.outputs_in_words(finding.outputs, quality=finding.case.quality)
    equal, _, price = told.partition(", ")
    return together((equal, *([element("small", price)] if price else [])))


def _physics(rows: Sequence[Finding]) -> Html:
    body = [
        (
            _name(finding),
            f"{words.expected_in_words(finding.row) or 'nothing for sure'}: {finding.row.why}",
            words.conclusion(finding),
            modelled_in_words(finding.case.name),
        )
        for finding in rows
    ]
    return table(("row", "expected", "measured", "modelled"), body, words=4)
