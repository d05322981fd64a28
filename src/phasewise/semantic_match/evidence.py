"""What verified matches have taught a domain: which word changes keep a meaning, and which cells are proven.

It only counts outcomes, in the order of the log.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nsmallest
from math import ceil, lgamma, log, log1p

from phasewise.core.caching import Lesson
from phasewise.core.value import value
from phasewise.semantic_match.rewrite import PART_MARK, Rewrite, may_turn

# --- When verified outcomes prove that few enough matches are wrong: a bet against the opposite.
#
# The claim "at least `budget` of such matches are wrong" is bet against with one unit of wealth. After each
# verified match the wealth is multiplied by (1 - q) / (1 - budget) if the match was right and by q / budget
# if it was wrong, with q < budget: if the claim is true, no step is expected to gain. Such wealth (a test
# supermartingale) ever reaches 1 / (1 - confidence) with a probability of at most 1 - confidence (Ville's
# inequality), so it may be checked after every outcome, without a planned sample size.
#
# Guaranteed: for matches whose true share of wrong ones stays at or above the budget, the probability that
# any is ever served is at most 1 - confidence. Not guaranteed: that a share which rises after the proof is
# noticed at once (audits then lower the wealth, and its cap lets a few wrong ones end the serving), nor
# anything about a judge that errs. Outcomes must be a fair sample of the matches: all of them before the
# proof, randomly drawn audits afterwards, and none selected by its outcome.

START = 0.0
"""The log of the wealth before any verified outcome."""
BET_DIVISOR = 4
"""The bet q is the budget divided by this: a wrong match divides the wealth by it."""
_ROUNDING = 1e-9
_PRIOR_RIGHT = 200.0
"""The prior over shares of wrong matches is Beta(1, this), which favours small ones. Any choice is valid."""


@value
class Bound:
    """Which share of wrong answers is acceptable, and with which confidence it must not be exceeded."""

    budget: float
    confidence: float

    @property
    def threshold(self) -> float:
        """The log of the wealth at which matches are proven good enough."""
        return -log1p(-self.confidence)

    @property
    def cap(self) -> float:
        """The limit of the wealth: after the first wrong match a second one soon ends the serving.

        Giving up wealth keeps the supermartingale valid.
        """
        return self.threshold + log(BET_DIVISOR)

    def after(self, log_wealth: float, right: bool) -> float:
        """The log of the wealth after one more outcome."""
        return min(log_wealth + (self._gain if right else -log(BET_DIVISOR)), self.cap)

    def proven(self, log_wealth: float) -> bool:
        """Whether such matches may be served."""
        return log_wealth >= self.threshold - _ROUNDING

    def missing(self, log_wealth: float) -> int:
        """How many more right outcomes in a row would complete the proof."""
        return max(0, ceil((self.threshold - log_wealth - _ROUNDING) / self._gain))

    def most_wrong_share(self, right: int, wrong: int) -> float:
        """The share of wrong matches that is not exceeded, with this confidence, however often it is read.

        For reports: it holds where the share does not change. Wealth decides what is served.
        """
        if not right:
            return 1.0
        low, high = wrong / (right + wrong), 1.0
        for _ in range(30):
            middle = (low + high) / 2
            if _log_evidence_against(middle, right, wrong) < self.threshold:
                low = middle
            else:
                high = middle
        return high

    @property
    def _gain(self) -> float:
        return log1p(-self.budget / BET_DIVISOR) - log1p(-self.budget)


def _log_evidence_against(share: float, right: int, wrong: int) -> float:
    """The log of the outcomes' likelihood, averaged over the prior, relative to that at this share."""
    averaged = _log_beta(1.0 + wrong, _PRIOR_RIGHT + right) - _log_beta(1.0, _PRIOR_RIGHT)
    return averaged - (wrong * log(share) if wrong else 0.0) - right * log1p(-share)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


MOST_DOMAINS = 1_024
MOST_PARTS_PER_DOMAIN = 20_000
"""Parts of changes that a domain remembers; the least recently taught one is evicted first."""
MOST_CELLS_PER_DOMAIN = 256
FORGIVEN_AFTER = 100
"""Right outcomes in a row, per wrong one ever, after which a change is no longer barred."""


DOUBTS_ENDED_AFTER = 3
"""Right outcomes in a row after which a change that a guard doubts is known as a whole; others need one."""


class Maturity(StrEnum):
    """What is known about a change of words. Only matches with a `known` change are ever served.

    `barred`: it was wrong, and not right often enough since. `new`: it was never verified. `stale`: it was
    verified only before the stored answer was generated, so it says nothing about that answer.
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
    """The record of a part of a change: right outcomes since the last wrong one, and all wrong ones."""

    run: int = 0
    wrong: int = 0
    right_unix_s: float = 0.0

    def maturity(self, since_unix_s: float, enough: int = 1) -> Maturity:
        """The maturity for an answer of that time, if this many right outcomes are `enough`."""
        if self.run < self.wrong * FORGIVEN_AFTER:
            return Maturity.BARRED
        if self.run < enough:
            return Maturity.NEW
        return Maturity.KNOWN if self.right_unix_s >= since_unix_s else Maturity.STALE


_UNSEEN = Standing()


@value
class MatchEvidence:
    """What is known about one cell."""

    right: int = 0
    wrong: int = 0
    log_wealth: float = START


@value
class CellReport:
    """A cell's evidence and what follows from it, for reports."""

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
    cells: dict[str, MatchEvidence] = field(default_factory=dict)

    def standing(self, part: str) -> Standing:
        """The record of a part or a whole change; read-only."""
        return self.parts.get(part, _UNSEEN)

    def maturity(self, part: str, since_unix_s: float, enough: int = 1) -> Maturity:
        """The maturity of a part or a whole change for an answer of that time."""
        return self.standing(part).maturity(since_unix_s if may_turn(part) else 0.0, enough)

    def renewed(self, part: str) -> Standing:
        """The same record, for writing; it becomes the most recently taught one."""
        standing = self.parts.setdefault(part, Standing())
        self.parts.move_to_end(part)
        return standing


class EvidenceBook:
    """Counts lessons. Reading changes nothing, so books that read the same log agree."""

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
        """Evict the least recently taught domain of the tenant that has the most.

        Clients choose namespaces, which create domains: a client with many must not evict those of others.
        """
        domains_of = Counter(map(_tenant, self._domains))
        greediest = max(domains_of, key=domains_of.__getitem__)
        del self._domains[next(name for name in self._domains if _tenant(name) == greediest)]

    def evidence(self, domain: str, cell: str) -> MatchEvidence:
        """What is known about a cell."""
        known = self._domains.get(domain)
        return known.cells.get(cell, MatchEvidence()) if known else MatchEvidence()

    def maturity(
        self, domain: str, rewrite: Rewrite, since_unix_s: float = 0.0, doubted: bool = False
    ) -> Maturity:
        """What is known about a change: as much as about its least known part, or about it as a whole.

        `since_unix_s`: when the stored answer was generated. The world may have changed since the words were
        last verified; a verification before that time says nothing about this answer. `doubted`: the parts
        say nothing either. Where no words differ there is nothing to know, and the cell's evidence decides.
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
        """The cells with the most evidence; limits are computed only for these, because that takes time."""
        cells = (
            (-known.right - known.wrong, name, cell)
            for name, domain in self._domains.items()
            for cell, known in domain.cells.items()
        )
        return [self.report(name, cell) for _, name, cell in nsmallest(most, cells)]

    def report(self, domain: str, cell: str) -> CellReport:
        """What is known about one cell, in words and shares."""
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
        before = domain.cells.get(lesson.cell, MatchEvidence())
        if lesson.cell not in domain.cells and len(domain.cells) >= MOST_CELLS_PER_DOMAIN:
            return
        domain.cells[lesson.cell] = MatchEvidence(
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
    """The least known parts: those that were often right elsewhere are hardly at fault."""
    known = [(standing.wrong == 0, standing.run) for standing in map(domain.standing, parts)]
    return [part for part, what in zip(parts, known, strict=True) if what == min(known)]


def _tenant(domain: str) -> str:
    return domain.partition("/")[0]
