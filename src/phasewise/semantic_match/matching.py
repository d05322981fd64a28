"""Whether a stored answer is served for another question: near enough, no guard objects, and proven.

Randomness is passed in, and outcomes reach the evidence book only as lessons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from phasewise.core.caching import Neighbour
from phasewise.core.value import value
from phasewise.semantic_match.evidence import EvidenceBook, KnownChange, Novelty, region_of
from phasewise.semantic_match.guards import Guard, objection
from phasewise.semantic_match.lessons import Lesson
from phasewise.semantic_match.reading import Reading, read
from phasewise.semantic_match.rewrite import PART_MARK, rewrite

EVIDENCE_VERSION = 2
"""Raise this when the meaning of guards, changes or regions changes: earlier lessons are then no evidence
for what is served now."""


EXCHANGES_AUDITED = 3
STALE_AUDITED = 8
"""How many times as often a match is audited in which words were put for others, and if that was last
verified before the stored answer was made: what words mean may change."""


class MatchVerdict(StrEnum):
    """What happens to a question: a stored answer, the model's answer and a judge, or the model's alone."""

    SERVE = "serve"
    EXPLORE = "explore"
    NOTHING = "nothing"


class Reason(StrEnum):
    """Why no stored answer is served. For a guard's objection, the guard's own name is given instead."""

    NOTHING_NEAR = "nothing_near"
    BARRED = "barred"
    NEW_CHANGE = "new_change"
    NOT_PROVEN = "not_proven"
    AUDIT = "audit"


@value
class MatchRules:
    """How near a match must be, and which share of those that could be served is audited."""

    min_similarity: float
    audit_share: float


@value
class Considered:
    """One neighbour as it was seen before any outcome was known: what objects, or how known its change is.

    `change` is the signature of how the words differ. `region` is 0 for a match that could not be served,
    whatever is proven. `stands_for` is how many matches an audited one stands for.
    """

    neighbour: Neighbour
    guard: Guard | None = None
    known: KnownChange | None = None
    change: str = ""
    region: int = 0
    stands_for: float = 1.0

    @property
    def promise(self) -> tuple[int, float]:
        """Greater for the neighbour that is looked at rather than others."""
        novelty = Novelty.BARRED if self.known is None else self.known.novelty
        return list(Novelty).index(novelty), self.neighbour.similarity


@value
class Match:
    """The decision, its neighbour, and all neighbours that were considered, nearest first."""

    verdict: MatchVerdict
    reason: str | None
    chosen: Considered | None = None
    considered: tuple[Considered, ...] = ()

    @property
    def neighbour(self) -> Neighbour | None:
        """The neighbour that is served, or judged."""
        return self.chosen.neighbour if self.chosen else None


def consider(
    question: str,
    neighbours: Sequence[Neighbour],
    book: EvidenceBook,
    rules: MatchRules,
    domain: str,
    draw: float,
) -> Match:
    """Decide about a question and its stored neighbours, nearest first. `draw` is random in [0, 1).

    The candidate is chosen by what is known about its change and how near it is, never by whether its region
    is proven: so outcomes before and after the proof are of the same sort.
    """
    near = [neighbour for neighbour in neighbours if neighbour.similarity >= rules.min_similarity]
    asked = read(question) if near else None
    considered = tuple(_look_at(asked, neighbour, book, domain) for neighbour in near if asked)
    candidates = [one for one in considered if one.guard is None]
    if not candidates:
        why = considered[0].guard if considered else None
        return Match(MatchVerdict.NOTHING, why or Reason.NOTHING_NEAR, considered=considered)
    chosen = max(candidates, key=lambda one: one.promise)
    audited = _audited_share(chosen, rules)
    reason = _why_not_served(chosen, book, domain) or (Reason.AUDIT if draw < audited else None)
    if reason is Reason.AUDIT:
        chosen = replace(chosen, stands_for=1 / audited)
    return Match(MatchVerdict.EXPLORE if reason else MatchVerdict.SERVE, reason, chosen, considered)


def _look_at(asked: Reading, neighbour: Neighbour, book: EvidenceBook, domain: str) -> Considered:
    stored = read(neighbour.answer.question)
    guard = objection(asked, stored)
    if guard is not None:
        return Considered(neighbour, guard)
    change = PART_MARK.join(rewrite(asked.words, stored.words, domain))
    known = book.known(domain, change, neighbour.answer.made_unix_s)
    region = region_of(known.run, neighbour.similarity) if known.novelty is Novelty.KNOWN else 0
    return Considered(neighbour, None, known, change, region)


def _why_not_served(chosen: Considered, book: EvidenceBook, domain: str) -> Reason | None:
    known = chosen.known
    if known is None or known.novelty is not Novelty.KNOWN:
        return Reason.BARRED if known and known.novelty is Novelty.BARRED else Reason.NEW_CHANGE
    return None if book.may_serve(domain, chosen.region) else Reason.NOT_PROVEN


def _audited_share(chosen: Considered, rules: MatchRules) -> float:
    known = chosen.known
    more_often = (
        STALE_AUDITED if known and known.stale else EXCHANGES_AUDITED if known and known.exchanges else 1
    )
    return min(1.0, rules.audit_share * more_often)


def lesson_of(
    chosen: Considered, asked_key: str, domain: str, right: bool, at_unix_s: float, basis: str = ""
) -> Lesson:
    """The lesson from a judged match."""
    return Lesson(
        domain=domain,
        region=chosen.region,
        change=chosen.change,
        right=right,
        at_unix_s=at_unix_s,
        basis=basis,
        asked=asked_key,
        stored=chosen.neighbour.answer.key,
        stands_for=chosen.stands_for,
    )
