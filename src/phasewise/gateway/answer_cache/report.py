"""Counts what the cache did, or in shadow mode would have done, and whether that was right.

It never contains a question, an answer or a key.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from enum import StrEnum
from typing import Any

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.statistics import quantile
from phasewise.semantic_match.evidence import Bound, CellReport, EvidenceBook
from phasewise.semantic_match.matching import Considered, Match, MatchVerdict, Reason, cell_report

TIMES_KEPT = 4_096
"""The latest times of each kind that the report's quantiles cover."""
MOST_CELLS = 50

_MISSED = frozenset({CacheResult.BYPASS, CacheResult.MISS, CacheResult.GUARDED, CacheResult.EXPLORED})
_SAVED = frozenset(
    {
        CacheResult.HIT_EXACT,
        CacheResult.HIT_SEMANTIC,
        CacheResult.JOINED,
        CacheResult.SHADOW_EXACT,
        CacheResult.SHADOW_SEMANTIC,
    }
)


class Tier(StrEnum):
    """How a stored answer was found: for the same request, or for one of the same meaning."""

    EXACT = "exact"
    SEMANTIC = "semantic"


class CacheReport:
    """The counts of one gateway since it started. Change it from one loop only."""

    def __init__(self, started_unix_s: float, bound: Bound | None) -> None:
        self._started_unix_s = started_unix_s
        self._bound = bound
        self._results: Counter[str] = Counter()
        self._reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._judged: dict[Tier, Counter[str]] = {tier: Counter() for tier in Tier}
        self._servable: Counter[str] = Counter()
        self._saved_start_s = self._saved_stream_s = 0.0
        self._saved_tokens = 0
        self._look_up_s: deque[float] = deque(maxlen=TIMES_KEPT)
        self._embed_s: deque[float] = deque(maxlen=TIMES_KEPT)
        self.dropped = 0
        self.unfit = 0

    def count(self, note: CacheNote) -> None:
        """A request has ended."""
        self._results[note.result] += 1
        if note.result in _MISSED and note.reason is not None:
            self._reasons[note.result.value][str(note.reason)] += 1
        if note.result in _SAVED:
            self._saved_start_s += note.saved_start_s or 0.0
            self._saved_stream_s += note.saved_stream_s or 0.0
            self._saved_tokens += note.saved_tokens or 0
        if note.result is not CacheResult.BYPASS:
            self._look_up_s.append(note.look_up_s)
        if note.embed_s is not None:
            self._embed_s.append(note.embed_s)

    def count_judged(self, tier: Tier, right: bool | None, servable: bool) -> None:
        """A stored answer was compared with the model's; `servable`: it was good enough to be served."""
        verdict = "unknown" if right is None else "right" if right else "wrong"
        self._judged[tier][verdict] += 1
        if servable and tier is Tier.SEMANTIC:
            self._servable[verdict] += 1

    def reported(self, book: EvidenceBook | None) -> dict[str, Any]:
        """All counts, for JSON."""
        return {
            "since_unix_s": self._started_unix_s,
            "requests": self._results.total(),
            "results": {it.value: self._results[it] for it in CacheResult if self._results[it]},
            "reasons": {result: dict(reasons) for result, reasons in self._reasons.items()},
            "judged": {tier.value: _verdicts(counts) for tier, counts in self._judged.items()},
            "wrong": self._wrong(),
            "saved": {
                "start_s": round(self._saved_start_s, 3),
                "stream_s": round(self._saved_stream_s, 3),
                "tokens": self._saved_tokens,
            },
            "look_up_s": _quantiles(self._look_up_s),
            "embed_s": _quantiles(self._embed_s),
            "dropped": self.dropped,
            "unfit": self.unfit,
            "cells": [] if book is None else [_cell(it) for it in book.snapshot(MOST_CELLS)],
        }

    def _wrong(self) -> dict[str, float | None] | None:
        """The wrong share of the semantic matches that were good enough to be served, in shadow mode too.

        It covers all tenants and kinds of match together and is for people to read. Serving is decided for
        each kind separately.
        """
        if self._bound is None:
            return None
        right, wrong = self._servable["right"], self._servable["wrong"]
        seen = right + wrong > 0
        return {
            "right": right,
            "wrong": wrong,
            "share": wrong / (right + wrong) if seen else None,
            "at_most": self._bound.most_wrong_share(right, wrong) if seen else None,
            "confidence": self._bound.confidence,
            "budget": self._bound.budget,
        }


def _verdicts(counts: Counter[str]) -> dict[str, int]:
    return {verdict: counts[verdict] for verdict in ("right", "wrong", "unknown")}


def _quantiles(times_s: deque[float]) -> dict[str, float] | None:
    if not times_s:
        return None
    return {"p50": round(quantile(times_s, 0.5), 6), "p99": round(quantile(times_s, 0.99), 6)}


def _cell(report: CellReport) -> dict[str, Any]:
    return {
        "domain": report.domain,
        "cell": report.cell,
        "right": report.right,
        "wrong": report.wrong,
        "proven": report.proven,
        "missing": report.missing,
        "at_most": report.most_wrong_share,
    }


# --- Explains what the cache would do with a question: its neighbours, what forbids them, and what
# is proven.
#
# Other clients' text is shown only on request, and only its beginning.

SHOWN_CHARACTERS = 80

_RESULTS = {MatchVerdict.SERVE: CacheResult.HIT_SEMANTIC, MatchVerdict.EXPLORE: CacheResult.EXPLORED}


def result_of(match: Match) -> CacheResult:
    """The result of a match in a cache that serves."""
    if match.verdict is MatchVerdict.NOTHING:
        return CacheResult.MISS if match.reason == Reason.NOTHING_NEAR else CacheResult.GUARDED
    return _RESULTS[match.verdict]


def bare_explanation(result: CacheResult, reason: str | None, domain: str | None = None) -> dict[str, Any]:
    """The outcome without any neighbours."""
    return {"result": result, "reason": reason, "similarity": None, "domain": domain, "neighbours": []}


def explanation(
    match: Match, book: EvidenceBook, domain: str, now_unix_s: float, show_text: bool
) -> dict[str, Any]:
    """The outcome, and every considered neighbour, nearest first."""
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
    row: dict[str, Any] = {
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
        row["question"] = answer.question[:SHOWN_CHARACTERS]
        row["detail"] = None if one.veto is None else one.veto.detail[:SHOWN_CHARACTERS]
    return row
