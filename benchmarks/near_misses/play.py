"""Plays a stream of requests to a cache and notes what each was given, and whether that was right.

The policy is the gateway's own (semantic_match/); the store is a table of who is near whom, worked out
before, which finds what an exact scan of the same answers finds. What outcomes come to is tally.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import numpy as np

from phasewise.core.caching import Neighbour, StoredAnswer
from phasewise.fleet.config import SemanticConfig
from phasewise.gateway.answer_cache.semantic import NEIGHBOURS
from phasewise.semantic_match.evidence import Budget, EvidenceBook
from phasewise.semantic_match.lessons import Lesson
from phasewise.semantic_match.matching import Considered, MatchRules, MatchVerdict, consider, lesson_of
from phasewise.semantic_match.planted import is_worth_judging, planted_wanted

from .requests import Request
from .vectors import Matrix

DOMAIN = "tenant/default/model"
ROWS_AT_ONCE = 500


class Given(StrEnum):
    """What a request was given."""

    EXACT = "exact"
    ALIAS = "alias"
    STORED = "stored"
    JUDGED = "judged"
    MODEL = "model"


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    `kind` is that of the first request in these words. `could_hit`: the same was asked before, in other words
    only, since answers expired last. `right` tells of a stored answer, given or judged, whether it was; None
    where there was none.
    """

    kind: str
    given: Given
    right: bool | None
    could_hit: bool

    @property
    def is_served(self) -> bool:
        """Whether it was given an answer that was made for another question."""
        return self.given in {Given.ALIAS, Given.STORED}

    @property
    def is_wrong(self) -> bool:
        """Whether that answer was wrong."""
        return self.is_served and not self.right


@dataclass(frozen=True)
class Played:
    """A stream made ready: its requests, which text each has, and which earlier texts are near each.

    All answers expire before the request of the number `expires_at`.
    """

    requests: Sequence[Request]
    text_ids: Sequence[int]
    texts: Sequence[str]
    near: Sequence[Sequence[tuple[int, float]]]
    expires_at: int


class CosineArm:
    """Serves what is near enough, and learns nothing."""

    def __init__(self, name: str, min_similarity: float) -> None:
        self.name = name
        self._min_similarity = min_similarity

    def draw(self) -> float:
        """Nothing is audited."""
        return 1.0

    def alias(self, key: str, draw: float) -> str | None:
        """It has none."""
        return None

    def decide(
        self, question: str, near: Sequence[Neighbour], draw: float
    ) -> tuple[Neighbour | None, Considered | None]:
        """The neighbour whose answer is served, if any, and one to judge, if any."""
        return next((it for it in near if it.similarity >= self._min_similarity), None), None

    def judge(self, chosen: Considered, asked: str, right: bool, now_s: float) -> bool:
        """Nothing is learned."""
        return False


class VerifiedArm:
    """The gateway's policy, with a judge who knows the truth, but errs in a share of all cases.

    With `by_change` it errs on real pairs always or never, by how their words differ; else by chance. It
    answers at once, and is asked about every pair.
    """

    def __init__(
        self, config: SemanticConfig, seed: int, judge_errs: float = 0.0, by_change: bool = False
    ) -> None:
        self.book = EvidenceBook(Budget(config.max_wrong_answers, config.confidence))
        self.judge_calls = 0
        self._rules = MatchRules(config.min_similarity, config.audit_share)
        self._rng = Random(f"verified {seed}")
        self._seed = seed
        self._judge_errs = judge_errs
        self._by_change = by_change

    def draw(self) -> float:
        """Which request is audited."""
        return self._rng.random()

    def alias(self, key: str, draw: float) -> str | None:
        """The text that was found to ask the same; some are audited."""
        return None if draw < self._rules.audit_share else self.book.alias(DOMAIN, key)

    def decide(
        self, question: str, near: Sequence[Neighbour], draw: float
    ) -> tuple[Neighbour | None, Considered | None]:
        """What the gateway does with what is near."""
        match = consider(question, near, self.book, self._rules, DOMAIN, draw)
        served = match.verdict is MatchVerdict.SERVE
        return (match.neighbour if served else None), (None if served else match.chosen)

    def judge(self, chosen: Considered, asked: str, right: bool, now_s: float) -> bool:
        """Learn what the judge says of a pair and of planted ones; False if it is not asked of the pair."""
        is_asked = is_worth_judging(self.book.judge)
        if is_asked:
            said = right if self._is_right(chosen.change) else not right
            self.book.learn(lesson_of(chosen, asked, DOMAIN, said, now_s))
        for kind in planted_wanted(self.book.judge, self._rng.random):
            self.book.learn(Lesson("", 0, "", self._is_right(), now_s, kind=kind))
        return is_asked

    def _is_right(self, change: str = "") -> bool:
        self.judge_calls += 1
        chance = Random(f"{change} {self._seed}") if self._by_change and change else self._rng
        return chance.random() >= self._judge_errs


def made_ready(
    requests: Sequence[Request],
    embed: Callable[[Sequence[str]], Matrix],
    least: float,
    expires_at: int | None = None,
) -> Played:
    """Embed a stream's texts and find, for each, the other ones that are near enough, nearest first."""
    ids: dict[str, int] = {}
    text_ids = [ids.setdefault(request.text, len(ids)) for request in requests]
    near = list(_near(embed(list(ids)), least))
    return Played(requests, text_ids, list(ids), near, len(requests) if expires_at is None else expires_at)


def play(played: Played, arm: CosineArm | VerifiedArm) -> list[Outcome]:
    """Send all requests one after the other. What is stored: every answer that the model gave."""
    stored: dict[str, StoredAnswer] = {}
    class_of: dict[str, str] = {}
    kinds: dict[int, str] = {}
    asked_texts: set[int] = set()
    asked_classes: set[str] = set()
    outcomes: list[Outcome] = []
    for now, (request, text) in enumerate(zip(played.requests, played.text_ids, strict=True)):
        if now == played.expires_at:
            stored.clear()
            asked_texts.clear()
            asked_classes.clear()
        key, kind = str(text), kinds.setdefault(text, request.kind)
        could_hit = request.answer_class in asked_classes and text not in asked_texts
        asked_texts.add(text)
        asked_classes.add(request.answer_class)
        given, found, chosen = _ask(arm, request.text, key, stored, played.near[text])
        right = None if found is None else class_of[found.key] == request.answer_class
        if given in {Given.MODEL, Given.JUDGED}:
            stored[key] = _answer(key, request.text, float(now))
            class_of[key] = request.answer_class
            if chosen is not None and right is not None and not arm.judge(chosen, key, right, float(now)):
                given = Given.MODEL
        outcomes.append(Outcome(kind, given, right, could_hit))
    return outcomes


def _ask(
    arm: CosineArm | VerifiedArm,
    question: str,
    key: str,
    stored: Mapping[str, StoredAnswer],
    near: Sequence[tuple[int, float]],
) -> tuple[Given, StoredAnswer | None, Considered | None]:
    """What the cache does with a question: what is given, the stored answer, and the pair to judge."""
    if key in stored:
        return Given.EXACT, stored[key], None
    draw = arm.draw()
    if (other := arm.alias(key, draw)) is not None and other in stored:
        return Given.ALIAS, stored[other], None
    served, chosen = arm.decide(question, _nearest_stored(near, stored), draw)
    if served is not None:
        return Given.STORED, served.answer, None
    if chosen is not None:
        return Given.JUDGED, chosen.neighbour.answer, chosen
    return Given.MODEL, None, None


def _nearest_stored(near: Sequence[tuple[int, float]], stored: Mapping[str, StoredAnswer]) -> list[Neighbour]:
    found: list[Neighbour] = []
    for text, similarity in near:
        if str(text) in stored:
            found.append(Neighbour(stored[str(text)], similarity))
            if len(found) == NEIGHBOURS:
                break
    return found


def _near(vectors: Matrix, least: float) -> Iterator[list[tuple[int, float]]]:
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        rows = vectors[start : start + ROWS_AT_ONCE] @ vectors.T
        for row, similarities in enumerate(rows, start=start):
            similarities[row] = 0.0
            (near,) = np.nonzero(similarities >= least)
            order = near[np.argsort(-similarities[near], kind="stable")]
            yield [(int(text), min(float(similarities[text]), 1.0)) for text in order]


def _answer(key: str, question: str, made_s: float) -> StoredAnswer:
    return StoredAnswer(
        key=key,
        scope="scope",
        tenant="tenant",
        namespace="default",
        model="model",
        question=question,
        text="",
        made_unix_s=made_s,
        expires_unix_s=float("inf"),
    )
