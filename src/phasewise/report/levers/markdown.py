"""The levers as a Markdown page: the table, then every row with expectation, measurement and reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.experiments.levers import findings as words
from phasewise.experiments.levers.catalogue import SHOWN, Case
from phasewise.experiments.levers.findings import LeverFinding, findings
from phasewise.experiments.levers.modelled import modelled_in_words
from phasewise.experiments.levers.notes import paging_sentence, reading_notes
from phasewise.experiments.levers.results import LeverEffect, Results
from phasewise.loadgen.statistics.comparison import MetricVerdict
from phasewise.report.levers.table import days_in_words


def render_markdown(cases: Sequence[Case], results: Results, command: str) -> str:
    """The whole page."""
    return "\n".join([*_head(results, command), *_table(cases, results), *_details(cases, results), ""])


def _head(results: Results, command: str) -> Iterator[str]:
    where = results.circumstances
    device = ", ".join(where.gpus) or f"{where.processor}, {where.cores} cores"
    yield from ("# What each lever does, measured", "")
    yield from (
        f"Printed by `{command}`, measured {days_in_words(results)}: {where.model} on "
        f"vLLM {where.vllm} ({where.device}), {device}, {where.memory_gib} GiB of memory, "
        f"phasewise {where.phasewise}, seed {where.seed}, {where.pairs} pairs of blocks per row. "
        "The same command measures it on your machine, with your model.",
        "",
    )


def _table(cases: Sequence[Case], results: Results) -> Iterator[str]:
    heads = ("lever", "traffic", "TTFT p50", "TPOT p50", "ITL p99", "tokens/s", "KV capacity", "answers")
    yield f"| {' | '.join(heads)} | physics |"
    yield "|---" * (len(heads) + 1) + "|"
    for finding in findings(cases, results):
        traffic = f"{finding.row.workload.name} ({words.shows(finding.row)})"
        effects = (_cell(finding, metric) for metric in SHOWN)
        capacity = words.capacity_in_words(finding)
        answers = words.outputs_in_words(finding.outputs, quality=finding.case.quality)
        physics = words.conclusion(finding, explained=False)
        cells = (f"**{finding.case.title}**", traffic, *effects, capacity, answers, physics)
        yield f"| {' | '.join(map(_escaped, cells))} |"
    yield ""
    paging = paging_sentence(results.paging)
    for note in (*((paging,) if paging else ()), *reading_notes(cases, results)):
        yield f"- {note}"
    yield ""


def _cell(finding: LeverFinding, metric: str) -> str:
    if finding.measured is None:
        return "–"
    if finding.hides_speed:
        return words.PRICE_UNKNOWN
    effect = finding.effects.get(metric)
    if effect is None or effect.verdict is MetricVerdict.UNKNOWN:
        return "–"
    return (
        f"{words.change_in_words(effect)} {words.WORDS[effect.verdict]} ({words.interval_in_words(effect)})"
    )


def _details(cases: Sequence[Case], results: Results) -> Iterator[str]:
    rows = findings(cases, results)
    yield from ("## Row by row", "")
    for case in cases:
        yield from (f"### {case.title[0].upper()}{case.title[1:]}", "")
        yield from (f"Acts on {case.phase}. Off: {case.off.in_words}. On: {case.on.in_words}.", "")
        facts = results.cases.get(case.engines_key)
        if facts is not None and facts.outputs is not None:
            described = facts.outputs.sentence or f"not read: {facts.outputs.reason}"
            yield from (f"Answers: {described}.", "")
        if modelled := modelled_in_words(case.name):
            yield from (f"{modelled[0].upper()}{modelled[1:]}.", "")
        for finding in (each for each in rows if each.case is case):
            yield from _detail(finding)
        yield ""


def _detail(finding: LeverFinding) -> Iterator[str]:
    row = finding.row
    expected = words.expected_in_words(row) or "no clear change"
    yield f"- **{row.workload.name}** ({row.workload.about}; {words.shows(row)})."
    yield f"  Expected: {expected}, because {row.why}."
    if finding.measured is None:
        yield f"  {words.conclusion(finding)}."
        return
    seen = "; ".join(_seen(effect) for effect in finding.measured.effects if effect.off is not None)
    if not finding.hides_speed:
        yield f"  Measured, {finding.measured.requests} requests a block: {seen}."
    yield f"  Physics: {words.conclusion(finding)}."
    for note in words.footnotes(finding):
        yield f"  Note: {note}."


def _seen(effect: LeverEffect) -> str:
    return (
        f"{words.LABELS[effect.metric]} {words.value_in_words(effect, effect.off)} -> "
        f"{words.value_in_words(effect, effect.on)}"
    )


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
