"""The levers for programs: every row with what was expected, seen and concluded, as plain JSON types.

Its fields are documented in docs/reference/levers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phasewise.levers import findings as words
from phasewise.levers.catalogue import Case
from phasewise.levers.findings import Finding, findings
from phasewise.levers.modelled import modelled_in_words
from phasewise.levers.notes import floors
from phasewise.levers.results import RESULTS_VERSION, Results


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


def _row(finding: Finding) -> dict[str, Any]:
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
