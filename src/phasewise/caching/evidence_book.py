"""What verified matches have taught a domain: which changes of words keep a meaning, which cells are proven.

It only counts what it is told, in the order of the log; what is served is matching.py's to decide.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nsmallest

from phasewise.caching.bound import START, Bound
from phasewise.caching.rewrite import PART_MARK, Rewrite, may_turn
from phasewise.model.caching import Lesson
from phasewise.model.noun import noun

MOST_DOMAINS = 1_024
MOST_PARTS_PER_DOMAIN = 20_000
"""Parts of changes that a domain remembers; the one that taught nothing for the longest goes first."""
MOST_CELLS_PER_DOMAIN = 256
FORGIVEN_AFTER = 100
"""Right outcomes in a row, for each wrong one ever, after which a change is no longer barred."""


DOUBTS_ENDED_AFTER = 3
"""Right outcomes in a row that make known, as a whole, a change that a guard doubts; others need one."""


class Maturity(StrEnum):
    """What is known of a change of words. Only matches by a `known` one are ever served.

    `barred`: it was wrong, and not often enough right since. `new`: it was never verified. `stale`: it was,
    but before the answer in question was made, of which that says nothing.
    """

    BARRED = "barred"
    NEW = "new"
    STALE = "stale"
    KNOWN = "known"

    @property
    def rank(self) -> int:
        """Greater for what is known better."""
        return _RANKS[self]


_RANKS = {maturity: rank for rank, maturity in enumerate(Maturity)}


@dataclass(slots=True)
class Standing:
    """How a part of a change has fared: right outcomes since the last wrong one, and all wrong ones."""

    run: int = 0
    wrong: int = 0
    right_unix_s: float = 0.0

    def maturity(self, since_unix_s: float, enough: int = 1) -> Maturity:
        """What this says of an answer that was made then, if so many right outcomes are `enough`."""
        if self.run < self.wrong * FORGIVEN_AFTER:
            return Maturity.BARRED
        if self.run < enough:
            return Maturity.NEW
        return Maturity.KNOWN if self.right_unix_s >= since_unix_s else Maturity.STALE


_UNSEEN = Standing()


@noun
class Evidence:
    """What is known of one cell."""

    right: int = 0
    wrong: int = 0
    log_wealth: float = START


@noun
class CellReport:
    """A cell's evidence and what follows from it, for people."""

    domain: str
    cell: str
    right: int
    wrong: int
    proven: bool
    missing: int
    most_wrong_share: float


@dataclass(slots=True)
class _Domain:
    parts: OrderedDict[str, Standing] = field(default_factory=OrderedDict)
    cells: dict[str, Evidence] = field(default_factory=dict)

    def standing(self, part: str) -> Standing:
        """How a part, or a whole change, has fared; to be read only."""
        return self.parts.get(part, _UNSEEN)

    def maturity(self, part: str, since_unix_s: float, enough: int = 1) -> Maturity:
        """What that says of an answer that was made then."""
        return self.standing(part).maturity(since_unix_s if may_turn(part) else 0.0, enough)

    def renewed(self, part: str) -> Standing:
        """The same, to be written to, as the one that taught last."""
        standing = self.parts.setdefault(part, Standing())
        self.parts.move_to_end(part)
        return standing


class EvidenceBook:
    """Lessons, counted. Reading changes nothing, so books that were told the same log agree."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self._domains: OrderedDict[str, _Domain] = OrderedDict()

    def learn(self, lesson: Lesson) -> None:
        """Count one outcome, for its domain alone."""
        domain = self._domains.setdefault(lesson.domain, _Domain())
        self._domains.move_to_end(lesson.domain)
        if len(self._domains) > MOST_DOMAINS:
            self._forget_a_domain()
        self._count(domain, lesson)
        self._remember(domain, lesson)

    def _forget_a_domain(self) -> None:
        """Of the tenant that has the most, the one that was taught least recently.

        Clients name namespaces, and so make domains: whoever makes many must not make others' be forgotten.
        """
        domains_of = Counter(map(_tenant, self._domains))
        greediest = max(domains_of, key=domains_of.__getitem__)
        del self._domains[next(name for name in self._domains if _tenant(name) == greediest)]

    def evidence(self, domain: str, cell: str) -> Evidence:
        """What is known of a cell."""
        known = self._domains.get(domain)
        return known.cells.get(cell, Evidence()) if known else Evidence()

    def maturity(
        self, domain: str, rewrite: Rewrite, since_unix_s: float = 0.0, doubted: bool = False
    ) -> Maturity:
        """What is known of a change: as much as of the least known of its parts, or of it as a whole.

        `since_unix_s`: when the stored answer was made. What other words stand for may have changed with the
        world since they were last verified, which then says nothing of this answer. `doubted`: what is known
        of parts says nothing either. Where no words differ there is nothing to know, and the cell's evidence
        decides.
        """
        if not rewrite.parts:
            return Maturity.KNOWN
        known = self._domains.get(domain)
        if known is None:
            return Maturity.NEW
        if doubted:
            return known.maturity(rewrite.signature, since_unix_s, DOUBTS_ENDED_AFTER)
        whole = known.maturity(rewrite.signature, since_unix_s)
        if whole is Maturity.BARRED:
            return whole
        parts = [known.maturity(part, since_unix_s) for part in rewrite.parts]
        return max(whole, min(parts, key=_RANKS.__getitem__), key=_RANKS.__getitem__)

    def snapshot(self, most: int = MOST_CELLS_PER_DOMAIN) -> list[CellReport]:
        """The cells with the most evidence; limits are worked out for these alone, as that takes time."""
        cells = (
            (-known.right - known.wrong, name, cell)
            for name, domain in self._domains.items()
            for cell, known in domain.cells.items()
        )
        return [self.report(name, cell) for _, name, cell in nsmallest(most, cells)]

    def report(self, domain: str, cell: str) -> CellReport:
        """What is known of one cell, in words and shares for people."""
        known = self.evidence(domain, cell)
        return CellReport(
            domain=domain,
            cell=cell,
            right=known.right,
            wrong=known.wrong,
            proven=self.bound.proven(known.log_wealth),
            missing=self.bound.missing(known.log_wealth),
            most_wrong_share=self.bound.most_wrong_share(known.right, known.wrong),
        )

    def _count(self, domain: _Domain, lesson: Lesson) -> None:
        before = domain.cells.get(lesson.cell, Evidence())
        if lesson.cell not in domain.cells and len(domain.cells) >= MOST_CELLS_PER_DOMAIN:
            return
        domain.cells[lesson.cell] = Evidence(
            right=before.right + lesson.right,
            wrong=before.wrong + (not lesson.right),
            log_wealth=self.bound.after(before.log_wealth, lesson.right),
        )

    def _remember(self, domain: _Domain, lesson: Lesson) -> None:
        parts = lesson.rewrite.split(PART_MARK) if lesson.rewrite else []
        whole = [lesson.rewrite] if len(parts) > 1 else []
        if lesson.right:
            for part in parts + whole:
                standing = domain.renewed(part)
                standing.run += 1
                standing.right_unix_s = max(standing.right_unix_s, lesson.at_unix_s)
        else:
            for part in _blamed(domain, parts) + whole:
                standing = domain.renewed(part)
                standing.run, standing.wrong = 0, standing.wrong + 1
        while len(domain.parts) > MOST_PARTS_PER_DOMAIN:
            domain.parts.popitem(last=False)


def _blamed(domain: _Domain, parts: list[str]) -> list[str]:
    """Those of which the least was known: what was often right elsewhere is hardly at fault."""
    known = [(standing.wrong == 0, standing.run) for standing in map(domain.standing, parts)]
    return [part for part, what in zip(parts, known, strict=True) if what == min(known)]


def _tenant(domain: str) -> str:
    return domain.partition("/")[0]
