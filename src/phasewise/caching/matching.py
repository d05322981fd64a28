"""Whether a stored answer is served to another question: near enough, no guard against it, and proven.

It decides and says why; randomness is handed in, and outcomes reach the evidence book by lessons alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from phasewise.caching.evidence_book import CellReport, EvidenceBook, Maturity
from phasewise.caching.guards import GUARDS_BUT_CONTENT, Guard, Veto
from phasewise.caching.guards.reading import Reading, read
from phasewise.caching.rewrite import Change, rewrite
from phasewise.model.caching import Lesson, Neighbour
from phasewise.model.noun import noun

EVIDENCE_VERSION = 1
"""To be raised when guards, changes of words or cells come to mean something else: what was learned before is
then no evidence for what is served now."""

DOUBTS = frozenset({Guard.ORDER, Guard.MODAL, Guard.QUESTION_WORD, Guard.CONNECTIVES, Guard.PERSONS})
"""Guards that look at how a sentence is built, and object to good paraphrases too. Their objection is no veto
but a doubt: such a match is served only if this very change, as a whole, was verified several times."""


class Sort(StrEnum):
    """What sort of match counts together, because it goes wrong for the same reasons.

    `form`: no words of content differ. `content`: some do. `doubted`: a guard objected, but not by a veto.
    """

    FORM = "form"
    CONTENT = "content"
    DOUBTED = "doubted"


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
    STALE_CHANGE = "stale_change"
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

    `veto` stands alone: what a guard forbids has no cell. `doubt` names a guard that objected without one.
    `signature` is that of the change, for the lesson.
    """

    neighbour: Neighbour
    veto: Veto | None = None
    doubt: Guard | None = None
    change: Change | None = None
    maturity: Maturity | None = None
    cell: str | None = None
    signature: str = ""


@noun
class Match:
    """What was decided, about which neighbour, and all that were looked at, nearest first.

    Looking ends at the first by a change that is known, as none behind it is better.
    """

    verdict: Verdict
    reason: str | None
    chosen: Considered | None = None
    considered: tuple[Considered, ...] = ()

    @property
    def neighbour(self) -> Neighbour | None:
        """The one that is served, or compared with what the model says."""
        return self.chosen.neighbour if self.chosen else None

    def lesson(self, domain: str, right: bool, at_unix_s: float, basis: str = "") -> Lesson:
        """What the outcome teaches, in the cell that was settled before it."""
        if self.chosen is None or self.chosen.cell is None:
            raise ValueError("nothing was matched, so there is nothing to learn")
        return Lesson(domain, self.chosen.cell, self.chosen.signature, right, at_unix_s, basis)


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
    considered = _look(question, neighbours, book, rules, domain)
    candidates = [one for one in considered if one.maturity is not None]
    if not candidates:
        return Match(Verdict.NOTHING, _why_nothing(considered), considered=considered)
    chosen = max(candidates, key=_promise)
    reason = _why_not_served(chosen, book, rules, domain, draw)
    return Match(Verdict.EXPLORE if reason else Verdict.SERVE, reason, chosen, considered)


def cell_report(considered: Considered, book: EvidenceBook, domain: str) -> CellReport | None:
    """What is known of a neighbour's cell, for `explain`."""
    return book.report(domain, considered.cell) if considered.cell else None


def _look(
    question: str, neighbours: Sequence[Neighbour], book: EvidenceBook, rules: Rules, domain: str
) -> tuple[Considered, ...]:
    asked: Reading | None = None
    considered: list[Considered] = []
    for neighbour in neighbours:
        if neighbour.similarity < rules.min_similarity:
            continue
        asked = asked or read(question)
        considered.append(_look_at(asked, neighbour, book, domain))
        if considered[-1].maturity is Maturity.KNOWN:
            break
    return tuple(considered)


def _look_at(asked: Reading, neighbour: Neighbour, book: EvidenceBook, domain: str) -> Considered:
    stored = read(neighbour.answer.question)
    veto, doubt = _objection(asked, stored)
    if veto is not None:
        return Considered(neighbour, veto=veto)
    how = rewrite(asked.words, stored.words, domain)
    if doubt is not None and how.exchanges:
        return Considered(neighbour, veto=doubt)
    maturity = book.maturity(domain, how, neighbour.answer.made_unix_s, doubted=doubt is not None)
    sort = Sort.DOUBTED if doubt else Sort.CONTENT if how.change.of_content else Sort.FORM
    return Considered(
        neighbour,
        doubt=doubt.guard if doubt else None,
        change=how.change,
        maturity=maturity,
        cell=f"{sort}/{maturity}",
        signature=how.signature,
    )


def _objection(asked: Reading, stored: Reading) -> tuple[Veto | None, Veto | None]:
    """The first veto, or else the first doubt."""
    doubt = None
    for guard, differs in GUARDS_BUT_CONTENT:
        if guard in DOUBTS and doubt is not None:
            continue
        if (detail := differs(asked, stored)) is None:
            continue
        if guard not in DOUBTS:
            return Veto(guard, detail), None
        doubt = Veto(guard, detail)
    return None, doubt


def _promise(one: Considered) -> tuple[int, float]:
    return (one.maturity.rank if one.maturity else -1, one.neighbour.similarity)


def _why_nothing(considered: Sequence[Considered]) -> str:
    return next((one.veto.guard for one in considered if one.veto), Reason.NOTHING_NEAR)


def _why_not_served(
    chosen: Considered, book: EvidenceBook, rules: Rules, domain: str, draw: float
) -> Reason | None:
    if chosen.maturity is not Maturity.KNOWN:
        return _UNKNOWN[chosen.maturity or Maturity.NEW]
    if not book.bound.proven(book.evidence(domain, chosen.cell or "").log_wealth):
        return Reason.NOT_PROVEN
    return Reason.AUDIT if draw < rules.audit_share else None


_UNKNOWN = {
    Maturity.BARRED: Reason.BARRED,
    Maturity.NEW: Reason.NEW_CHANGE,
    Maturity.STALE: Reason.STALE_CHANGE,
}
