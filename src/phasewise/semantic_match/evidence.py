"""What verified matches have taught: which changes of words keep a meaning, whether the judge is to be
trusted, and which region of matches may be served.

It only counts outcomes, in the order of the log, so that gateways which read one log agree.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from phasewise.core.value import value
from phasewise.semantic_match.bound import Proof, Share, Tracked
from phasewise.semantic_match.lessons import Lesson, LessonKind
from phasewise.semantic_match.rewrite import EXCHANGE_MARK, PART_MARK

# --- What is guaranteed, and what is not.
#
# Guaranteed: a region whose true share of wrong answers is at or above the budget is ever served with a
# chance of at most 1 - confidence. The judge's errors are counted in. Its share of wrong "yes" is bounded
# from above by planted pairs that differ, its share of wrong "no" from below by planted pairs that are equal:
#     no = wrong (1 - F) + right G, so that wrong >= budget means no >= budget (1 - F) + (1 - budget) G
# and a region is proven when fewer "no" than that are. That holds for a judge that errs by chance. One that
# always errs on the same changes of words never says no to them, and a region of these would look right. So
# what was approved is weighed against what was rejected as well: of pairs that differ, some F / (1 - F) were
# approved for each "no" of the domain. That is an expectation, and holds for aliases too.
#
# Not guaranteed: that the judge errs no more often on real pairs than on planted ones, and that a share which
# rises after the proof is noticed at once (audits then lower the wealth, and its cap lets a few end it).

NOVELTIES = (1, 2, 4)
"""Right outcomes of the least known part of a change. Regions are nested: known better belongs to all."""
NEAR = 0.95
"""The similarity from which matches belong to the regions of near ones too, numbered on by _NEAR."""
_NEAR = 10
FORGIVEN_AFTER = 10
"""Right outcomes in a row, per wrong one ever, after which a part of a change is no longer barred."""
MOST_DOMAINS = 1_024
MOST_PARTS_PER_DOMAIN = 20_000
"""Parts of changes that a domain remembers; the least recently taught one is evicted first."""
MOST_ALIASES_PER_DOMAIN = 20_000


@value
class Budget:
    """Which share of wrong answers is acceptable, and with which confidence it must not be exceeded.

    The confidence is split between the proof of a region and the two bounds of the judge.
    """

    wrong: float
    confidence: float

    @property
    def of_proof(self) -> float:
        """The confidence of each region's proof."""
        return 1 - (1 - self.confidence) * 0.5

    @property
    def of_judge(self) -> float:
        """The confidence of each of the judge's bounds."""
        return 1 - (1 - self.confidence) * 0.25


class Novelty(StrEnum):
    """What is known about the change of words of a match.

    `barred`: it was wrong, and not right often enough since. `new`: it was never verified. `known`: all its
    parts were.
    """

    BARRED = "barred"
    NEW = "new"
    KNOWN = "known"


@value
class KnownChange:
    """What is known about a change: `run` is how often its least known part was right in a row.

    `exchanges`: words were put for others, whose meaning may change with the world. `stale`: they were last
    right before the stored answer was made, which says nothing about that answer.
    """

    novelty: Novelty
    run: int
    exchanges: bool = False
    stale: bool = False


@dataclass(slots=True)
class _Standing:
    """The record of a part of a change: right outcomes since the last wrong one, and all wrong ones."""

    run: int = 0
    wrong: int = 0
    right_unix_s: float = 0.0

    @property
    def is_barred(self) -> bool:
        return self.run < self.wrong * FORGIVEN_AFTER


@value
class RegionReport:
    """A region of matches: what was seen of it, and what follows.

    `missing` is how many more right ones it needs, about; None while too little is known of the judge.
    """

    domain: str
    least_known: int
    least_similarity: float
    right: int
    wrong: int
    proven: bool
    missing: int | None


@dataclass(slots=True)
class _MatchRegion:
    """What was seen of a region; `yes` is of how many matches, those included that were served unjudged."""

    proof: Proof = field(default_factory=Proof)
    yes: float = 0.0


@dataclass(slots=True)
class _Domain:
    parts: OrderedDict[str, _Standing] = field(default_factory=OrderedDict)
    regions: dict[int, _MatchRegion] = field(default_factory=dict)
    aliases: OrderedDict[str, str] = field(default_factory=OrderedDict)
    yes: float = 0.0
    no: float = 0.0

    def renewed(self, part: str) -> _Standing:
        """A part's record, for writing; it becomes the most recently taught one."""
        standing = self.parts.setdefault(part, _Standing())
        self.parts.move_to_end(part)
        return standing


_NOTHING_KNOWN = _Domain()
_UNSEEN = _Standing()


class JudgeRecord:
    """How often the judge was wrong about pairs whose truth is known, and what that leaves open."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._begin()

    def _begin(self) -> None:
        self._wrong_yes = Tracked(self._budget.of_judge)
        self._wrong_no = Tracked(self._budget.of_judge)

    def learn(self, kind: LessonKind, right: bool) -> None:
        """Count the judge's verdict on a planted pair; `right`: it said what is true.

        If it is not the judge that it was, as when a model of that name has changed, counting starts again.
        """
        tracked = self._wrong_yes if kind is LessonKind.PLANTED_DIFFERENT else self._wrong_no
        if not tracked.learn(right):
            self._begin()

    @property
    def different(self) -> Share:
        """Verdicts on planted pairs that differ."""
        return self._wrong_yes.share

    @property
    def equal(self) -> Share:
        """Verdicts on planted pairs that are equal."""
        return self._wrong_no.share

    @property
    def most_wrong_yes(self) -> float:
        """Its share of wrong "yes" among pairs that differ, at most."""
        return self._wrong_yes.most

    @property
    def is_trusted(self) -> bool:
        """Whether its wrong "yes" are proven to be within the budget; else only exact hits are served."""
        return self.most_wrong_yes <= self._budget.wrong

    @property
    def is_refuted(self) -> bool:
        """Whether its wrong "yes" are proven to be beyond the budget."""
        return self._wrong_yes.least > self._budget.wrong

    @property
    def tolerated_no(self) -> float:
        """The share of "no" that a region with as many wrong answers as the budget has at least."""
        wrong = self._budget.wrong
        return wrong * (1 - self.most_wrong_yes) + (1 - wrong) * self._credited_no

    @property
    def _credited_no(self) -> float:
        """Its share of wrong "no" among equal pairs, at least, as far as it is not held against matches.

        No more than half the budget: if the judge no longer erred so, as many wrong answers would pass.
        """
        return min(self._wrong_no.least, self._budget.wrong / 2)

    def wrong_share(self, no: float) -> float:
        """The share of wrong answers where the judge says no to this share, at most."""
        least = self._credited_no
        return min(1.0, max(0.0, no - least) / max(1 - self.most_wrong_yes - least, 1e-9))

    def wrong_among(self, yes: float, no: float, wrong_yes: float | None = None) -> float:
        """The share of wrong ones among what it approved while it rejected others, as if one more of each.

        `wrong_yes` is its share of those, by default the most that it may be.
        """
        share = self.most_wrong_yes if wrong_yes is None else wrong_yes
        return share / max(1 - share, 1e-9) * (no + 1) / (yes + 1)

    @property
    def likely_wrong_yes(self) -> float:
        """Its share of wrong "yes" as seen, as if one more had been."""
        return (self.different.wrong + 1) / (self.different.right + self.different.wrong + 1)


class EvidenceBook:
    """Counts lessons. Reading changes nothing, so books that read the same log agree."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.judge = JudgeRecord(budget)
        self._domains: OrderedDict[str, _Domain] = OrderedDict()

    # --- reading ------------------------------------------------------------------------------------------

    def known(self, domain: str, change: str, made_unix_s: float = 0.0) -> KnownChange:
        """What is known about a change of words, for a stored answer that was made at this time."""
        if not change:
            return KnownChange(Novelty.KNOWN, NOVELTIES[-1])
        parts = self._domains.get(domain, _NOTHING_KNOWN).parts
        named = change.split(PART_MARK)
        standings = [parts.get(part, _UNSEEN) for part in named]
        run = min(standing.run for standing in standings)
        if any(standing.is_barred for standing in standings):
            return KnownChange(Novelty.BARRED, run)
        exchanges = [
            standing
            for part, standing in zip(named, standings, strict=True)
            if part.startswith(EXCHANGE_MARK)
        ]
        stale = any(standing.right_unix_s < made_unix_s for standing in exchanges)
        return KnownChange(Novelty.KNOWN if run else Novelty.NEW, run, bool(exchanges), stale)

    def may_serve(self, domain: str, region: int) -> bool:
        """Whether a match of this region may be served: one that contains it is proven, and the judge is.

        Of what it rejected in the domain, no more may have been approved instead than the region can bear: in
        a region of changes on which a judge always errs, it never says no.
        """
        known = self._domains.get(domain, _NOTHING_KNOWN)
        return self.judge.is_trusted and any(
            self._is_proven(known.regions[each], known)
            for each in _containing(region)
            if each in known.regions
        )

    def alias(self, domain: str, key: str) -> str | None:
        """The key of a request that the judge found to ask the same, if its approvals may be served."""
        known = self._domains.get(domain, _NOTHING_KNOWN)
        if not self.judge.is_trusted or self.judge.wrong_among(known.yes, known.no) > self.budget.wrong:
            return None
        return known.aliases.get(key)

    def _is_proven(self, region: _MatchRegion, domain: _Domain) -> bool:
        """Whether it is, if the judge errs by chance, and is likely to be, if it errs on certain changes."""
        likely = self.judge.wrong_among(region.yes, domain.no, self.judge.likely_wrong_yes)
        return region.proof.holds(self.budget.of_proof) and likely <= self.budget.wrong

    def aliases(self) -> int:
        """How many aliases are known."""
        return sum(len(domain.aliases) for domain in self._domains.values())

    def regions(self) -> Iterator[RegionReport]:
        """All regions of which something was seen."""
        for name, domain in self._domains.items():
            for least, region in domain.regions.items():
                proof = region.proof
                yield RegionReport(
                    domain=name,
                    least_known=least % _NEAR,
                    least_similarity=NEAR if least > _NEAR else 0.0,
                    right=proof.outcomes.right,
                    wrong=proof.outcomes.wrong,
                    proven=self._is_proven(region, domain),
                    missing=proof.missing(self.judge.tolerated_no, self.budget.of_proof),
                )

    # --- learning -----------------------------------------------------------------------------------------

    def learn(self, lesson: Lesson) -> None:
        """Count one outcome, for its domain alone; what planted pairs show of the judge counts for all."""
        if lesson.kind is not LessonKind.MATCH:
            self.judge.learn(lesson.kind, lesson.right)
            return
        domain = self._domains.setdefault(lesson.domain, _Domain())
        self._domains.move_to_end(lesson.domain)
        if len(self._domains) > MOST_DOMAINS:
            self._forget_a_domain()
        if lesson.right and domain.aliases.get(lesson.asked) == lesson.stored:
            return  # the same pair again, which shows nothing of others
        if lesson.right:
            domain.yes += lesson.stands_for
        else:
            domain.no += lesson.stands_for
        for least in _containing(lesson.region):
            region = domain.regions.setdefault(least, _MatchRegion())
            region.yes += lesson.stands_for if lesson.right else 0.0
            region.proof = region.proof.after(lesson.right, self.judge.tolerated_no, self.budget.of_proof)
        _remember_change(domain, lesson)
        _remember_alias(domain, lesson)

    def _forget_a_domain(self) -> None:
        """Evict the least recently taught domain of the tenant that has the most.

        Clients choose namespaces, which create domains: a client with many must not evict those of others.
        """
        domains_of = Counter(map(_tenant, self._domains))
        greediest = max(domains_of, key=domains_of.__getitem__)
        del self._domains[next(name for name in self._domains if _tenant(name) == greediest)]


def region_of(run: int, similarity: float) -> int:
    """The smallest region of a match whose change was right so often in its least known part; 0 for none."""
    known = max((least for least in NOVELTIES if least <= run), default=0)
    return known + _NEAR if known and similarity >= NEAR else known


def _containing(region: int) -> list[int]:
    """All regions that contain this one; none for a match that could not have been served."""
    known = [least for least in NOVELTIES if least <= region % _NEAR]
    return known + [least + _NEAR for least in known] if region > _NEAR else known


def _remember_change(domain: _Domain, lesson: Lesson) -> None:
    parts = lesson.change.split(PART_MARK) if lesson.change else []
    for part in parts if lesson.right else _blamed(domain, parts):
        standing = domain.renewed(part)
        standing.run = standing.run + 1 if lesson.right else 0
        standing.wrong += not lesson.right
        if lesson.right:
            standing.right_unix_s = max(standing.right_unix_s, lesson.at_unix_s)
    while len(domain.parts) > MOST_PARTS_PER_DOMAIN:
        domain.parts.popitem(last=False)


def _blamed(domain: _Domain, parts: list[str]) -> list[str]:
    """The least known parts: those that were often right elsewhere are hardly at fault."""
    runs = {part: domain.parts.get(part, _UNSEEN).run for part in parts}
    return [part for part in parts if runs[part] == min(runs.values())]


def _remember_alias(domain: _Domain, lesson: Lesson) -> None:
    asked, stored = lesson.asked, lesson.stored
    if lesson.right and asked != stored:
        domain.aliases[asked] = stored
        domain.aliases.move_to_end(asked)
        if len(domain.aliases) > MOST_ALIASES_PER_DOMAIN:
            domain.aliases.popitem(last=False)
    elif not lesson.right:
        for one, other in ((asked, stored), (stored, asked)):
            if domain.aliases.get(one) == other:
                del domain.aliases[one]


def _tenant(domain: str) -> str:
    return domain.partition("/")[0]
