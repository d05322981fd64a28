"""Whether a stored answer is served for another question: near enough, no guard objects, and proven.

Randomness is passed in, and outcomes reach the evidence book only as lessons.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from phasewise.core.caching import Lesson, Neighbour
from phasewise.core.value import value
from phasewise.semantic_match.evidence import CellReport, EvidenceBook, Maturity
from phasewise.semantic_match.guards import GUARDS_BUT_CONTENT, Guard, Veto
from phasewise.semantic_match.guards.reading import Reading, read
from phasewise.semantic_match.rewrite import Change, rewrite

EVIDENCE_VERSION = 1
"""Raise this when the meaning of guards, word changes or cells changes: earlier lessons are then no evidence
for what is served now."""

DOUBTS = frozenset({Guard.ORDER, Guard.MODAL, Guard.QUESTION_WORD, Guard.CONNECTIVES, Guard.PERSONS})
"""Guards that check sentence structure, and object to good paraphrases too. Their objection is not a veto but
a doubt: such a match is served only if the identical change, as a whole, was verified several times."""


class Sort(StrEnum):
    """The sort of match, which counts together because it goes wrong for the same reasons.

    `form`: no content words differ. `content`: some do. `doubted`: a guard objected, but without a veto.
    """

    FORM = "form"
    CONTENT = "content"
    DOUBTED = "doubted"


class MatchVerdict(StrEnum):
    """What happens to a question: a stored answer, the model's answer to learn from, or the model's alone."""

    SERVE = "serve"
    EXPLORE = "explore"
    NOTHING = "nothing"


class Reason(StrEnum):
    """Why no stored answer is served. For a guard's veto, the guard's own name is given instead."""

    NOTHING_NEAR = "nothing_near"
    BARRED = "barred"
    NEW_CHANGE = "new_change"
    STALE_CHANGE = "stale_change"
    NOT_PROVEN = "not_proven"
    AUDIT = "audit"


@value
class MatchRules:
    """How near a match must be, and which share of those that could be served is audited."""

    min_similarity: float
    audit_share: float


@value
class Considered:
    """One neighbour as it was judged before any outcome was known.

    A neighbour with a `veto` has no cell. `doubt` names a guard that objected without a veto. `signature` is
    that of the change, for the lesson.
    """

    neighbour: Neighbour
    veto: Veto | None = None
    doubt: Guard | None = None
    change: Change | None = None
    maturity: Maturity | None = None
    cell: str | None = None
    signature: str = ""


@value
class Match:
    """The decision, its neighbour, and all neighbours that were considered, nearest first.

    The search ends at the first neighbour with a known change, because none after it is better.
    """

    verdict: MatchVerdict
    reason: str | None
    chosen: Considered | None = None
    considered: tuple[Considered, ...] = ()

    @property
    def neighbour(self) -> Neighbour | None:
        """The neighbour that is served, or compared with the model's answer."""
        return self.chosen.neighbour if self.chosen else None

    def lesson(self, domain: str, right: bool, at_unix_s: float, basis: str = "") -> Lesson:
        """The lesson from the outcome, in the cell that was chosen before it."""
        if self.chosen is None or self.chosen.cell is None:
            raise ValueError("nothing was matched, so there is nothing to learn")
        return Lesson(domain, self.chosen.cell, self.chosen.signature, right, at_unix_s, basis)


def consider(
    question: str,
    neighbours: Sequence[Neighbour],
    book: EvidenceBook,
    rules: MatchRules,
    domain: str,
    draw: float,
) -> Match:
    """Decide about a question and its stored neighbours, nearest first. `draw` is random in [0, 1).

    The candidate is chosen by what is known about its change and how near it is, never by whether its cell is
    proven: so outcomes before and after the proof are of the same sort.
    """
    considered = _look(question, neighbours, book, rules, domain)
    candidates = [one for one in considered if one.maturity is not None]
    if not candidates:
        return Match(MatchVerdict.NOTHING, _why_nothing(considered), considered=considered)
    chosen = max(candidates, key=_promise)
    reason = _why_not_served(chosen, book, rules, domain, draw)
    return Match(MatchVerdict.EXPLORE if reason else MatchVerdict.SERVE, reason, chosen, considered)


def cell_report(considered: Considered, book: EvidenceBook, domain: str) -> CellReport | None:
    """What is known about a neighbour's cell, for `explain`."""
    return book.report(domain, considered.cell) if considered.cell else None


def _look(
    question: str, neighbours: Sequence[Neighbour], book: EvidenceBook, rules: MatchRules, domain: str
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
    """The first veto, else the first doubt."""
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
    chosen: Considered, book: EvidenceBook, rules: MatchRules, domain: str, draw: float
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
