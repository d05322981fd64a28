"""How good a rule for matching questions is, told by pairs whose meaning is known to be the same or not.

Who embeds the pairs and asks the guards about them is left to others, and so is how the outcome is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from phasewise.caching.guards import Guard
from phasewise.model.noun import noun

COSINES = (0.85, 0.90, 0.95)


class Guarding(StrEnum):
    """Which guards a rule listens to. `but_content`: all but the one that objects to synonyms too."""

    NONE = "none"
    BUT_CONTENT = "but_content"
    ALL = "all"


@noun
class Pair:
    """Two questions: their kind, whether one answer fits both, their cosine, and the guard that objects.

    `veto` names the first guard that objects, the content guard if that alone does, and is None otherwise.
    """

    kind: str
    duplicate: bool
    similarity: float
    veto: Guard | None = None


@noun
class Rule:
    """When one question's answer is given to another: near enough, and no guard objects."""

    min_similarity: float
    guarding: Guarding = Guarding.NONE

    @property
    def name(self) -> str:
        """How the rule is called in tables."""
        guards = {
            Guarding.NONE: "",
            Guarding.BUT_CONTENT: " + guards but content",
            Guarding.ALL: " + all guards",
        }
        return f"cosine {self.min_similarity:.2f}{guards[self.guarding]}"

    def hits(self, pair: Pair) -> bool:
        """Whether the stored answer of such a pair is served."""
        return pair.similarity >= self.min_similarity and not self._heeds(pair.veto)

    def _heeds(self, veto: Guard | None) -> bool:
        if veto is None or self.guarding is Guarding.NONE:
            return False
        return self.guarding is Guarding.ALL or veto != Guard.CONTENT


RULES = tuple(Rule(cosine, guarding) for guarding in Guarding for cosine in COSINES)


@noun
class KindCount:
    """What a rule did to pairs of one kind, or to all of them.

    `hits` counts pairs of the same meaning that were served, `false_hits` those of another meaning.
    """

    kind: str
    duplicates: int
    hits: int
    others: int
    false_hits: int

    @property
    def precision(self) -> float | None:
        """The share of what was served that was right; None if nothing was served."""
        return _share(self.hits, self.hits + self.false_hits)

    @property
    def recall(self) -> float | None:
        """The share of pairs of the same meaning that were served; None if there were none."""
        return _share(self.hits, self.duplicates)

    @property
    def false_hit_share(self) -> float | None:
        """The share of pairs of another meaning that were served all the same; None if there were none."""
        return _share(self.false_hits, self.others)


@noun
class Evaluation:
    """What one rule did: altogether, and to each kind in the order of first appearance."""

    rule: Rule
    total: KindCount
    kinds: tuple[KindCount, ...]

    @property
    def worst_kind(self) -> KindCount | None:
        """The kind of another meaning that was served the most often, by its share; None if there is none."""
        return max(
            (kind for kind in self.kinds if kind.others),
            key=lambda kind: kind.false_hit_share or 0.0,
            default=None,
        )


def evaluate(pairs: Iterable[Pair], rules: Sequence[Rule] = RULES) -> list[Evaluation]:
    """What each rule would have done to these pairs, in the order of the rules."""
    by_kind: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_kind.setdefault(pair.kind, []).append(pair)
    return [_evaluate(rule, by_kind) for rule in rules]


def _evaluate(rule: Rule, by_kind: dict[str, list[Pair]]) -> Evaluation:
    kinds = tuple(_count(rule, kind, pairs) for kind, pairs in by_kind.items())
    total = KindCount(
        kind="all",
        duplicates=sum(kind.duplicates for kind in kinds),
        hits=sum(kind.hits for kind in kinds),
        others=sum(kind.others for kind in kinds),
        false_hits=sum(kind.false_hits for kind in kinds),
    )
    return Evaluation(rule, total, kinds)


def _count(rule: Rule, kind: str, pairs: Sequence[Pair]) -> KindCount:
    served = [pair.duplicate for pair in pairs if rule.hits(pair)]
    duplicates = sum(pair.duplicate for pair in pairs)
    return KindCount(kind, duplicates, sum(served), len(pairs) - duplicates, len(served) - sum(served))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
