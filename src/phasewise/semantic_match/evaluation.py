"""How good a rule for matching questions is, measured on pairs known to mean the same or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from phasewise.core.value import value
from phasewise.semantic_match.guards import Guard

COSINES = (0.85, 0.90, 0.95)


class Guarding(StrEnum):
    """Which guards a rule applies. `but_content`: all but the one that also objects to synonyms."""

    NONE = "none"
    BUT_CONTENT = "but_content"
    ALL = "all"


@value
class ScoredPair:
    """Two questions: their kind, whether one answer fits both, their cosine, and the guard that objects.

    `veto` names the first guard that objects, the content guard only if no other does, else None.
    """

    kind: str
    duplicate: bool
    similarity: float
    veto: Guard | None = None


@value
class Rule:
    """When one question's answer is served for another: near enough, and no guard objects."""

    min_similarity: float
    guarding: Guarding = Guarding.NONE

    @property
    def name(self) -> str:
        """The rule's name in tables."""
        guards = {
            Guarding.NONE: "",
            Guarding.BUT_CONTENT: " + guards but content",
            Guarding.ALL: " + all guards",
        }
        return f"cosine {self.min_similarity:.2f}{guards[self.guarding]}"

    def hits(self, pair: ScoredPair) -> bool:
        """Whether the stored answer of such a pair is served."""
        return pair.similarity >= self.min_similarity and not self._heeds(pair.veto)

    def _heeds(self, veto: Guard | None) -> bool:
        if veto is None or self.guarding is Guarding.NONE:
            return False
        return self.guarding is Guarding.ALL or veto != Guard.CONTENT


RULES = tuple(Rule(cosine, guarding) for guarding in Guarding for cosine in COSINES)


@value
class KindCount:
    """What a rule did with pairs of one kind, or with all of them.

    `hits` counts served pairs of the same meaning, `false_hits` those of another meaning.
    """

    kind: str
    duplicates: int
    hits: int
    others: int
    false_hits: int

    @property
    def precision(self) -> float | None:
        """The share of served pairs that were right; None if none was served."""
        return _share(self.hits, self.hits + self.false_hits)

    @property
    def recall(self) -> float | None:
        """The share of pairs of the same meaning that were served; None if there were none."""
        return _share(self.hits, self.duplicates)

    @property
    def false_hit_share(self) -> float | None:
        """The share of pairs of another meaning that were served; None if there were none."""
        return _share(self.false_hits, self.others)


@value
class Evaluation:
    """What one rule did: in total, and per kind in the order of first appearance."""

    rule: Rule
    total: KindCount
    kinds: tuple[KindCount, ...]

    @property
    def worst_kind(self) -> KindCount | None:
        """The kind of another meaning with the largest share served; None if there is none."""
        return max(
            (kind for kind in self.kinds if kind.others),
            key=lambda kind: kind.false_hit_share or 0.0,
            default=None,
        )


def evaluate(pairs: Iterable[ScoredPair], rules: Sequence[Rule] = RULES) -> list[Evaluation]:
    """What each rule would have done with these pairs, in the order of the rules."""
    by_kind: dict[str, list[ScoredPair]] = {}
    for pair in pairs:
        by_kind.setdefault(pair.kind, []).append(pair)
    return [_evaluate(rule, by_kind) for rule in rules]


def _evaluate(rule: Rule, by_kind: dict[str, list[ScoredPair]]) -> Evaluation:
    kinds = tuple(_count(rule, kind, pairs) for kind, pairs in by_kind.items())
    total = KindCount(
        kind="all",
        duplicates=sum(kind.duplicates for kind in kinds),
        hits=sum(kind.hits for kind in kinds),
        others=sum(kind.others for kind in kinds),
        false_hits=sum(kind.false_hits for kind in kinds),
    )
    return Evaluation(rule, total, kinds)


def _count(rule: Rule, kind: str, pairs: Sequence[ScoredPair]) -> KindCount:
    served = [pair.duplicate for pair in pairs if rule.hits(pair)]
    duplicates = sum(pair.duplicate for pair in pairs)
    return KindCount(kind, duplicates, sum(served), len(pairs) - duplicates, len(served) - sum(served))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
