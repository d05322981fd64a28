"""Counts what the cache did, or in shadow mode would have done, and what the judge said of it.

It never contains a question, an answer or a key, unless an admin asks to see a question's neighbours.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from heapq import nlargest
from typing import Any

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.statistics import quantile
from phasewise.gateway.answer_cache.judges import Judge
from phasewise.semantic_match.bound import Share
from phasewise.semantic_match.evidence import EvidenceBook
from phasewise.semantic_match.matching import Considered, Match, MatchVerdict, Reason

TIMES_KEPT = 4_096
"""The latest times of each kind that the report's quantiles cover."""
MOST_REGIONS = 50
SHOWN_CHARACTERS = 80
"""Other clients' questions are shown only on request, and only their beginnings."""


class CacheReport:
    """The counts of one gateway since it started. Change it from one loop only."""

    def __init__(self, started_unix_s: float) -> None:
        self._started_unix_s = started_unix_s
        self._results: Counter[str] = Counter()
        self._reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._judged: Counter[str] = Counter()
        self._servable = Share()
        self._saved_start_s = self._saved_stream_s = 0.0
        self._saved_tokens = 0
        self._look_up_s: deque[float] = deque(maxlen=TIMES_KEPT)
        self._embed_s: deque[float] = deque(maxlen=TIMES_KEPT)
        self.dropped = 0
        self.unfit = 0

    def count(self, note: CacheNote) -> None:
        """A request has ended."""
        self._results[note.result] += 1
        if note.result.found:
            self._saved_start_s += note.saved_start_s or 0.0
            self._saved_stream_s += note.saved_stream_s or 0.0
            self._saved_tokens += note.saved_tokens or 0
        elif note.reason is not None:
            self._reasons[note.result.value][str(note.reason)] += 1
        if note.result is not CacheResult.BYPASS:
            self._look_up_s.append(note.look_up_s)
        if note.embed_s is not None:
            self._embed_s.append(note.embed_s)

    def count_judged(self, approved: bool | None, servable: bool) -> None:
        """A match was judged; `servable`: it was good enough to be served."""
        self._judged["unknown" if approved is None else "yes" if approved else "no"] += 1
        if servable and approved is not None:
            self._servable = self._servable.after(approved)

    def reported(self, book: EvidenceBook | None, judge: Judge | None) -> dict[str, Any]:
        """All counts, for JSON."""
        return {
            "since_unix_s": self._started_unix_s,
            "requests": self._results.total(),
            "results": {it.value: self._results[it] for it in CacheResult if self._results[it]},
            "reasons": {result: dict(reasons) for result, reasons in self._reasons.items()},
            "saved": {
                "start_s": round(self._saved_start_s, 3),
                "stream_s": round(self._saved_stream_s, 3),
                "tokens": self._saved_tokens,
            },
            "look_up_s": _quantiles(self._look_up_s),
            "embed_s": _quantiles(self._embed_s),
            "dropped": self.dropped,
            "unfit": self.unfit,
            "semantic": None if book is None or judge is None else self._semantic(book, judge),
        }

    def _semantic(self, book: EvidenceBook, judge: Judge) -> dict[str, Any]:
        budget, record, servable = book.budget, book.judge, self._servable
        _, most_no = servable.interval(budget.of_proof)
        regions = nlargest(MOST_REGIONS, book.regions(), key=lambda it: it.right + it.wrong)
        return {
            "budget": budget.wrong,
            "confidence": budget.confidence,
            "aliases": book.aliases(),
            "judged": {verdict: self._judged[verdict] for verdict in ("yes", "no", "unknown")},
            "servable": {
                "yes": servable.right,
                "no": servable.wrong,
                "wrong_at_most": record.wrong_share(most_no) if servable != Share() else None,
            },
            "judge": {
                "trusted": record.is_trusted,
                "refuted": record.is_refuted,
                "different": {"right": record.different.right, "wrong": record.different.wrong},
                "equal": {"right": record.equal.right, "wrong": record.equal.wrong},
                "wrong_yes_at_most": record.most_wrong_yes,
                "calls": judge.calls,
                "prompt_tokens": judge.prompt_tokens,
                "busy_s": round(judge.busy_s, 3),
            },
            "regions": [
                {
                    "domain": it.domain,
                    "verified_at_least": it.least_known,
                    "similarity_at_least": it.least_similarity,
                    "yes": it.right,
                    "no": it.wrong,
                    "proven": it.proven,
                    "missing": it.missing,
                }
                for it in regions
            ],
        }


def _quantiles(times_s: deque[float]) -> dict[str, float] | None:
    if not times_s:
        return None
    return {"p50": round(quantile(times_s, 0.5), 6), "p99": round(quantile(times_s, 0.99), 6)}


# --- What the cache would do with one question.

_RESULTS = {MatchVerdict.SERVE: CacheResult.HIT_SEMANTIC, MatchVerdict.EXPLORE: CacheResult.EXPLORED}


def result_of(match: Match) -> CacheResult:
    """The result of a match in a cache that serves."""
    if match.verdict is MatchVerdict.NOTHING:
        return CacheResult.MISS if match.reason == Reason.NOTHING_NEAR else CacheResult.GUARDED
    return _RESULTS[match.verdict]


def bare_explanation(result: CacheResult, reason: str | None, domain: str | None = None) -> dict[str, Any]:
    """The outcome without any neighbours."""
    return {"result": result, "reason": reason, "similarity": None, "domain": domain, "neighbours": []}


def explanation(match: Match, domain: str, now_unix_s: float, show_text: bool) -> dict[str, Any]:
    """The outcome, and every considered neighbour, nearest first."""
    neighbour = match.neighbour
    return {
        "result": result_of(match),
        "reason": match.reason,
        "similarity": None if neighbour is None else neighbour.similarity,
        "domain": domain,
        "neighbours": [_neighbour(it, now_unix_s, show_text) for it in match.considered],
    }


def _neighbour(one: Considered, now_unix_s: float, show_text: bool) -> dict[str, Any]:
    answer = one.neighbour.answer
    return {
        "similarity": one.neighbour.similarity,
        "age_s": max(0.0, now_unix_s - answer.made_unix_s),
        "guard": one.guard,
        "change": one.known.novelty if one.known and one.change else None,
        "verified": one.known.run if one.known else 0,
        "question": answer.question[:SHOWN_CHARACTERS] if show_text else None,
    }
