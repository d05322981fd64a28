"""Whether a stored answer is served to another question: near enough, no guard against it, and proven.

It decides and says why; randomness is handed in, and outcomes reach the evidence book by lessons alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from phasewise.caching.evidence_book import CellReport, EvidenceBook, Maturity
from phasewise.caching.guards import Veto, hard_veto
from phasewise.caching.rewrite import Change, rewrite
from phasewise.caching.words import Word, words
from phasewise.model.caching import Lesson, Neighbour
from phasewise.model.noun import noun

BAND_EDGES = (0.90, 0.95)
"""Similarities at which another cell begins."""


class Verdict(StrEnum):
    """What becomes of a question: a stored answer, the model's answer to learn from, or the model's alone."""

    SERVE = "serve"
    EXPLORE = "explore"
    NOTHING = "nothing"


class Reason(StrEnum):
    """Why no stored answer is served. A guard's veto is told by the guard's own name instead."""

    NOTHING_NEAR = "nothing_near"
    BARRED = "barred"
    NEW_CHANGE = "new_change"
    NOT_PROVEN = "not_proven"
    AUDIT = "audit"


@noun
class Rules:
    """How near a match must be, and what share of those that could be served is checked all the same."""

    min_similarity: float
    audit_share: float


@noun
class Considered:
    """One neighbour as it was judged before any outcome was known.

    `veto` stands alone: what a guard forbids has no cell. `signature` is that of the change, for the lesson.
    """

    neighbour: Neighbour
    veto: Veto | None = None
    change: Change | None = None
    maturity: Maturity | None = None
    cell: str | None = None
    signature: str = ""


@noun
class Match:
    """What was decided, about which neighbour, and all that were looked at, nearest first."""

    verdict: Verdict
    reason: str | None
    chosen: Considered | None = None
    considered: tuple[Considered, ...] = ()

    @property
    def neighbour(self) -> Neighbour | None:
        """The one that is served, or compared with what the model says."""
        return self.chosen.neighbour if self.chosen else None

    def lesson(self, domain: str, right: bool, at_unix_s: float) -> Lesson:
        """What the outcome teaches, in the cell that was settled before it."""
        if self.chosen is None or self.chosen.cell is None:
            raise ValueError("nothing was matched, so there is nothing to learn")
        return Lesson(domain, self.chosen.cell, self.chosen.signature, right, at_unix_s)


def consider(
    question: str,
    neighbours: Sequence[Neighbour],
    book: EvidenceBook,
    rules: Rules,
    domain: str,
    draw: float,
) -> Match:
    """Decide about a question and what is stored near it, nearest first. `draw` is in [0, 1), by lot.

    The candidate is chosen by what is known of its change and how near it is, never by whether its cell is
    proven: outcomes before and after the proof are then of the same sort.
    """
    near = [neighbour for neighbour in neighbours if neighbour.similarity >= rules.min_similarity]
    asked = words(question) if near else ()
    considered = tuple(_look_at(question, asked, neighbour, book, domain) for neighbour in near)
    candidates = [one for one in considered if one.maturity is not None]
    if not candidates:
        return Match(Verdict.NOTHING, _why_nothing(considered), considered=considered)
    chosen = max(candidates, key=_promise)
    reason = _why_not_served(chosen, book, rules, domain, draw)
    return Match(Verdict.EXPLORE if reason else Verdict.SERVE, reason, chosen, considered)


def cell_report(considered: Considered, book: EvidenceBook, domain: str) -> CellReport | None:
    """What is known of a neighbour's cell, for `explain`."""
    return book.report(domain, considered.cell) if considered.cell else None


def _look_at(
    question: str, asked: Sequence[Word], neighbour: Neighbour, book: EvidenceBook, domain: str
) -> Considered:
    stored = neighbour.answer.question
    if (veto := hard_veto(question, stored)) is not None:
        return Considered(neighbour, veto=veto)
    change = rewrite(asked, words(stored), domain)
    maturity = book.maturity(domain, change)
    band = sum(neighbour.similarity >= edge for edge in BAND_EDGES)
    return Considered(
        neighbour,
        change=change.change,
        maturity=maturity,
        cell=f"{change.change}/{band}/{maturity}",
        signature=change.signature,
    )


def _promise(one: Considered) -> tuple[int, float]:
    return (one.maturity.rank if one.maturity else -1, one.neighbour.similarity)


def _why_nothing(considered: Sequence[Considered]) -> str:
    return next((one.veto.guard for one in considered if one.veto), Reason.NOTHING_NEAR)


def _why_not_served(
    chosen: Considered, book: EvidenceBook, rules: Rules, domain: str, draw: float
) -> Reason | None:
    if chosen.maturity is Maturity.BARRED:
        return Reason.BARRED
    if chosen.maturity is Maturity.NEW:
        return Reason.NEW_CHANGE
    if not book.bound.proven(book.evidence(domain, chosen.cell or "").log_wealth):
        return Reason.NOT_PROVEN
    return Reason.AUDIT if draw < rules.audit_share else None
