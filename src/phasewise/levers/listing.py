"""The catalogue for programs: what would be measured, and what physics expects of it, as plain JSON types.

Its fields are documented in docs/reference/levers.md; for people it is printed by table.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phasewise.levers.catalogue import Case, Row
from phasewise.levers.results import RESULTS_VERSION


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
        "rows": [_row(row) for row in case.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "traffic": row.workload.name,
        "about": row.workload.about,
        "can_show": row.can_show,
        "expected": dict(row.expected),
        "why": row.why,
    }
