"""Tells an admin what would become of a question, and why: its neighbours, what forbids them, what is proven.

The words of others are shown only if they are asked for, and never more than their beginning.
"""

from __future__ import annotations

from typing import Any

from phasewise.caching.evidence_book import EvidenceBook
from phasewise.caching.matching import Considered, Match, Reason, Verdict, cell_report
from phasewise.model.caching import CacheResult

SHOWN_CHARACTERS = 80

_RESULTS = {Verdict.SERVE: CacheResult.HIT_SEMANTIC, Verdict.EXPLORE: CacheResult.EXPLORED}


def result_of(match: Match) -> CacheResult:
    """What a cache that serves makes of a match."""
    if match.verdict is Verdict.NOTHING:
        return CacheResult.MISS if match.reason == Reason.NOTHING_NEAR else CacheResult.GUARDED
    return _RESULTS[match.verdict]


def bare_explanation(result: CacheResult, reason: str | None, domain: str | None = None) -> dict[str, Any]:
    """The outcome where no neighbour had a part in it."""
    return {"result": result, "reason": reason, "similarity": None, "domain": domain, "neighbours": []}


def explanation(
    match: Match, book: EvidenceBook, domain: str, now_unix_s: float, show_text: bool
) -> dict[str, Any]:
    """The outcome, and every neighbour that was looked at, nearest first."""
    neighbour = match.neighbour
    return {
        "result": result_of(match),
        "reason": match.reason,
        "similarity": None if neighbour is None else neighbour.similarity,
        "domain": domain,
        "neighbours": [_neighbour(it, book, domain, now_unix_s, show_text) for it in match.considered],
    }


def _neighbour(
    one: Considered, book: EvidenceBook, domain: str, now_unix_s: float, show_text: bool
) -> dict[str, Any]:
    answer, cell = one.neighbour.answer, cell_report(one, book, domain)
    told: dict[str, Any] = {
        "similarity": one.neighbour.similarity,
        "age_s": max(0.0, now_unix_s - answer.made_unix_s),
        "guard": None if one.veto is None else one.veto.guard,
        "doubt": one.doubt,
        "kind": one.change,
        "cell": one.cell,
        "right": 0 if cell is None else cell.right,
        "wrong": 0 if cell is None else cell.wrong,
        "proven": cell is not None and cell.proven,
        "missing": None if cell is None else cell.missing,
    }
    if show_text:
        told["question"] = answer.question[:SHOWN_CHARACTERS]
        told["detail"] = None if one.veto is None else one.veto.detail[:SHOWN_CHARACTERS]
    return told
