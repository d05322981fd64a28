"""Counts what the cache did, or in shadow mode would have done, and whether that was right.

No question, answer or key is ever part of it. Deciding is answer_cache.py's.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from enum import StrEnum
from typing import Any

from phasewise.caching.bound import Bound
from phasewise.caching.evidence_book import CellReport, EvidenceBook
from phasewise.model.caching import CacheNote, CacheResult
from phasewise.model.quantiles import quantile

TIMES_KEPT = 4_096
"""Of each sort of time, the latest: what is told is of now, not of all the gateway's life."""
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
    """By what a stored answer was found: the same request, or one of the same meaning."""

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
        """A stored answer was compared with the model's own; `servable`: it was good enough to be served."""
        verdict = "unknown" if right is None else "right" if right else "wrong"
        self._judged[tier][verdict] += 1
        if servable and tier is Tier.SEMANTIC:
            self._servable[verdict] += 1

    def told(self, book: EvidenceBook | None) -> dict[str, Any]:
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
        """Of the matches by meaning that were good enough to be served, in shadow mode too.

        Over all tenants and kinds of match together, as if their share of wrong ones stayed what it is: for
        people to read. What is served is decided for each kind apart.
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
