"""The levers as plain JSON types: every row with expectation, measurement and conclusion.

docs/reference/levers.md describes the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phasewise.experiments.levers import findings as words
from phasewise.experiments.levers.catalogue import Case, Row
from phasewise.experiments.levers.findings import LeverFinding, findings
from phasewise.experiments.levers.guide import GuideRow
from phasewise.experiments.levers.modelled import modelled_in_words
from phasewise.experiments.levers.notes import floors
from phasewise.experiments.levers.results import RESULTS_VERSION, Results


def as_facts(cases: Sequence[Case], results: Results) -> dict[str, Any]:
    """Everything measured of these cases, and what it means."""
    known = {case.name for case in cases} | {"floor"}
    return {
        "v": RESULTS_VERSION,
        "circumstances": results.circumstances.model_dump(mode="json"),
        "began_unix_s": results.began_unix_s,
        "rows": [_row(finding) for finding in findings(cases, results)],
        "noise_floor": {name: floor.model_dump(mode="json") for name, floor in floors(cases, results)},
        "paging": None if results.paging is None else results.paging.model_dump(mode="json"),
        "attention_backend": results.attention_backend,
        "not_measured": {
            key: why for key, why in results.not_measured.items() if key.partition("/")[0] in known
        },
    }


def _row(finding: LeverFinding) -> dict[str, Any]:
    measured = finding.measured
    return {
        "case": finding.case.name,
        "lever": finding.case.lever,
        "phase": finding.case.phase,
        "off": finding.case.off.in_words,
        "on": finding.case.on.in_words,
        "traffic": finding.row.workload.name,
        "about": finding.row.workload.about,
        "can_show": finding.row.can_show,
        "expected": dict(finding.row.expected),
        "why": finding.row.why,
        "effects": [effect.model_dump(mode="json") for effect in finding.effects.values()],
        "agreement": finding.agreement,
        "modelled": modelled_in_words(finding.case.name),
        "conclusion": words.conclusion(finding),
        "kv_tokens_off": None if finding.facts is None else finding.facts.kv_tokens_off,
        "kv_tokens_on": None if finding.facts is None else finding.facts.kv_tokens_on,
        "outputs": None if finding.outputs is None else finding.outputs.model_dump(mode="json"),
        "requests": None if measured is None else measured.requests,
        "pairs": None if measured is None else measured.pairs,
        "void_pairs": None if measured is None else measured.void_pairs,
        "remarks": [] if measured is None else list(measured.remarks),
        "took_s": None if measured is None else measured.took_s,
        "measured_unix_s": None if measured is None else measured.measured_unix_s,
    }


# --- The catalogue as plain JSON types: what would be measured, and what physics predicts.
#
# docs/reference/levers.md describes the fields.


def as_listing(cases: Sequence[Case]) -> dict[str, Any]:
    """Every case with its traffic."""
    return {"v": RESULTS_VERSION, "cases": [_case(case) for case in cases]}


def _case(case: Case) -> dict[str, Any]:
    return {
        "case": case.name,
        "lever": case.lever,
        "phase": case.phase,
        "title": case.title,
        "off": case.off.in_words,
        "on": case.on.in_words,
        "may_change_answers": case.quality,
        "device": case.device,
        "rows": [_listed_row(row) for row in case.rows],
    }


def _listed_row(row: Row) -> dict[str, Any]:
    return {
        "traffic": row.workload.name,
        "about": row.workload.about,
        "can_show": row.can_show,
        "expected": dict(row.expected),
        "why": row.why,
    }


def guide_facts(rows: Sequence[GuideRow], model: str) -> dict[str, Any]:
    """The table of levers and phases."""
    return {
        "v": RESULTS_VERSION,
        "modelled_on": model,
        "levers": [
            {
                "lever": row.lever.name,
                "helps_prefill": row.lever.prefill,
                "helps_decode": row.lever.decode,
                "why": row.lever.why,
                "modelled": row.modelled,
                "measured": row.measured or None,
            }
            for row in rows
        ],
    }
