"""The levers as one HTML file that opens offline: a table coloured by what helps, then every row in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from phasewise.experiments.levers import findings as words
from phasewise.experiments.levers.catalogue import SHOWN, TPOT, TTFT, Case
from phasewise.experiments.levers.findings import LeverFinding, findings
from phasewise.experiments.levers.modelled import modelled_in_words
from phasewise.experiments.levers.notes import paging_sentence, reading_notes
from phasewise.experiments.levers.results import LeverEffect, Results
from phasewise.loadgen.statistics.comparison import MetricVerdict
from phasewise.report.layout import defined, facts, repeat_section, section, strip, whole_page
from phasewise.report.levers.table import days_in_words
from phasewise.report.markup import Html, element, table, together

TITLE = "What each lever does"
HEADINGS = ("TTFT", "TPOT", "ITL p99", "tokens/s", "KV capacity", "answers")
COLOURS = {
    MetricVerdict.BETTER: "--decode",
    MetricVerdict.WORSE: "--objective",
    MetricVerdict.EQUIVALENT: "--client-lag",
}
FAINTEST, FULLEST = 0.15, 0.75
FULL_AT = 4.0
"""A change by this factor has the full colour."""
LEGEND = (
    "Each cell is the change when the lever is switched on, with its interval. Green helps, orange hurts, "
    "grey is no effect, white is inconclusive or not measured; a stronger colour is a larger change. "
    "Perplexity is that of a text that no model was trained on."
)


def render_page(cases: Sequence[Case], results: Results, command: str) -> str:
    """The whole page."""
    rows = findings(cases, results)
    parts = (
        _strip(rows, results),
        section("Which lever helps which phase, with which traffic?", _figures(rows)),
        section("What physics predicts, and what was measured", _physics(rows)),
        section("This measurement", _circumstances(cases, results)),
        defined(),
        repeat_section(command),
    )
    return whole_page(TITLE, together(parts))


def _strip(rows: Sequence[LeverFinding], results: Results) -> Html:
    where = results.circumstances
    best = [sentence for metric in (TTFT, TPOT) if (sentence := _best(rows, metric))]
    about = ("Synthetic load", where.model, f"{len(rows)} rows, {where.pairs} pairs of blocks each")
    lead = "Every lever off and on with the same requests."
    return strip("measured", about, f"{'; '.join(best)}." if best else TITLE, lead)


def _best(rows: Sequence[LeverFinding], metric: str) -> str:
    """The lever that lowers a latency most; empty if none does."""
    helped = [
        (effect.change, finding)
        for finding in rows
        if (effect := finding.effects.get(metric)) is not None
        and effect.verdict is MetricVerdict.BETTER
        and effect.change is not None
        and not finding.hides_speed
    ]
    if not helped:
        return ""
    _, finding = min(helped, key=lambda item: item[0])
    change = words.change_in_words(finding.effects[metric])
    return (
        f"{words.LABELS[metric]} falls most by {finding.case.title}: {change} ({finding.row.workload.name})"
    )


def _circumstances(cases: Sequence[Case], results: Results) -> Html:
    where = results.circumstances
    listed = {
        "Measured": days_in_words(results),
        "Machine": ", ".join(where.gpus) or f"{where.processor}, {where.cores} cores",
        "Memory": f"{where.memory_gib} GiB",
        "vLLM": f"{where.vllm} ({where.device})",
        "phasewise": where.phasewise,
        "Pairs of blocks": str(where.pairs),
        "Seed": str(where.seed),
    }
    paging = paging_sentence(results.paging)
    notes = (*((paging,) if paging else ()), *reading_notes(cases, results))
    return together((element("ul", *(element("li", note) for note in notes), class_="notes"), facts(listed)))


def _coloured(content: str, colour: str = "", strength: float = 0.0) -> Html:
    if not colour:
        return together((content,))
    style = f"--c:var({colour});--strength:{strength:.0%}"
    return element("div", content, class_="effect", style=style)


def _strength(effect: LeverEffect) -> float:
    if effect.verdict is MetricVerdict.EQUIVALENT or effect.change is None:
        return FAINTEST
    return _depth(1 + effect.change)


def _depth(ratio: float) -> float:
    share = min(abs(log(max(ratio, 1e-3))) / log(FULL_AT), 1.0)
    return FAINTEST + (FULLEST - FAINTEST) * share


def _figures(rows: Sequence[LeverFinding]) -> Html:
    notes = [
        f"{finding.case.title}, {finding.row.workload.name}: {note}"
        for finding in rows
        for note in words.footnotes(finding)
    ]
    figures = table(("lever, traffic", *HEADINGS), [_row(finding) for finding in rows])
    listed = element("ul", *(element("li", note) for note in notes), class_="notes")
    return together((element("p", LEGEND), figures, listed))


def _row(finding: LeverFinding) -> list[str]:
    return [
        _name(finding),
        *(_cell(finding, name) for name in SHOWN),
        _capacity(finding),
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
    said = together((words.change_in_words(effect), element("small", described)))
    return _coloured(said, COLOURS.get(effect.verdict, ""), _strength(effect))


def _capacity(finding: LeverFinding) -> Html:
    engine, text = finding.facts, words.capacity_in_words(finding)
    if engine is None or not engine.kv_tokens_off or not engine.kv_tokens_on:
        return _coloured(text)
    ratio = engine.kv_tokens_on / engine.kv_tokens_off
    colour = "" if ratio == 1 else COLOURS[MetricVerdict.BETTER if ratio > 1 else MetricVerdict.WORSE]
    said = together((text, element("small", f"{engine.kv_tokens_off:,} to {engine.kv_tokens_on:,} tokens")))
    return _coloured(said, colour, _depth(ratio))


def _answers(finding: LeverFinding) -> Html:
    described = words.outputs_in_words(finding.outputs, quality=finding.case.quality)
    equal, _, price = described.partition(", ")
    said = together((equal, *([element("small", price)] if price else [])))
    outputs, quality = finding.outputs, finding.case.quality
    changed = outputs is not None and (
        outputs.equal < outputs.answers or (quality and outputs.low is not None and outputs.low > 0)
    )
    return _coloured(said, COLOURS[MetricVerdict.WORSE] if changed else "", FAINTEST)


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
