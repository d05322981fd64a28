"""Plays a stream of requests to a cache and notes what each was given, and whether that was right.

The policy is the gateway's own (caching/); the store is a table of who is near whom, worked out before, which
finds what an exact scan of the same answers finds. What outcomes come to is tally.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from random import Random

import numpy as np

from phasewise.core.caching import Neighbour, StoredAnswer
from phasewise.fleet.config import SemanticConfig
from phasewise.gateway.answer_cache.semantic import NEIGHBOURS
from phasewise.semantic_match.evaluation import Guarding
from phasewise.semantic_match.evidence import Bound, EvidenceBook
from phasewise.semantic_match.guards import veto, veto_but_content
from phasewise.semantic_match.matching import Match, MatchRules, MatchVerdict, consider

from .requests import Request
from .vectors import Matrix

DOMAIN = "tenant/default/model"
ROWS_AT_ONCE = 500


class Given(StrEnum):
    """What a request was given."""

    EXACT = "exact"
    STORED = "stored"
    EXPLORED = "explored"
    MODEL = "model"


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    `kind` is that of the first request in these words. `could_hit`: the same was asked before, in other words
    only. `right` tells of a stored answer, given or explored, whether it was; None where there was none.
    """

    kind: str
    third: int
    given: Given
    right: bool | None
    could_hit: bool


@dataclass(frozen=True)
class Played:
    """A stream made ready: its requests, which text each has, and which earlier texts are near each."""

    requests: Sequence[Request]
    text_ids: Sequence[int]
    texts: Sequence[str]
    near: Sequence[Sequence[tuple[int, float]]]


class Arm:
    """A rule for serving; the simplest serve what is near enough and not vetoed, and learn nothing."""

    def __init__(self, name: str, min_similarity: float, guarding: Guarding = Guarding.NONE) -> None:
        self.name = name
        self.min_similarity = min_similarity
        self._guarding = guarding

    def decide(self, question: str, near: Sequence[Neighbour]) -> tuple[Neighbour | None, Match | None]:
        """The neighbour whose answer is served, if any, and a match from which could be learned."""
        for neighbour in near:
            if neighbour.similarity >= self.min_similarity and not self._vetoed(question, neighbour):
                return neighbour, None
        return None, None

    def learn(self, match: Match, right: bool, now_s: float) -> None:
        """The model's answer was compared with the stored one."""

    def _vetoed(self, question: str, neighbour: Neighbour) -> bool:
        return self._guarding is not Guarding.NONE and _veto(
            question, neighbour.answer.question, self._guarding
        )


class BoundArm(Arm):
    """The gateway's policy, with a judge who knows the truth but errs now and then."""

    def __init__(self, config: SemanticConfig, seed: int, judge_errs: float = 0.0) -> None:
        super().__init__("bound", config.min_similarity)
        self.book = EvidenceBook(Bound(config.max_wrong_answers, config.confidence))
        self._rules = MatchRules(config.min_similarity, config.audit_share)
        self._rng = Random(f"bound {seed}")
        self._judge_errs = judge_errs

    def decide(self, question: str, near: Sequence[Neighbour]) -> tuple[Neighbour | None, Match | None]:
        """What the gateway does with what is near."""
        match = consider(question, near, self.book, self._rules, DOMAIN, self._rng.random())
        return (match.neighbour if match.verdict is MatchVerdict.SERVE else None), match

    def learn(self, match: Match, right: bool, now_s: float) -> None:
        """Teach what the judge says."""
        said = right if self._rng.random() >= self._judge_errs else not right
        self.book.learn(match.lesson(DOMAIN, said, now_s))


def made_ready(requests: Sequence[Request], embed: Callable[[Sequence[str]], Matrix], least: float) -> Played:
    """Embed a stream's texts and find, for each, the earlier ones that are near enough, nearest first."""
    ids: dict[str, int] = {}
    text_ids = [ids.setdefault(request.text, len(ids)) for request in requests]
    texts = list(ids)
    return Played(requests, text_ids, texts, list(_earlier_near(embed(texts), least)))


def play(played: Played, arm: Arm) -> list[Outcome]:
    """Send all requests one after the other. What is stored: every answer that the model gave."""
    stored: dict[int, StoredAnswer] = {}
    kinds: dict[int, str] = {}
    class_of: dict[int, str] = {}
    asked_classes: set[str] = set()
    outcomes: list[Outcome] = []
    for now, (request, text) in enumerate(zip(played.requests, played.text_ids, strict=True)):
        could_hit = request.answer_class in asked_classes and text not in kinds
        kind = kinds.setdefault(text, request.kind)
        asked_classes.add(request.answer_class)
        if text in stored:
            outcomes.append(Outcome(kind, request.third, Given.EXACT, True, False))
            continue
        near = _nearest_stored(played.near[text], stored)
        served, match = arm.decide(request.text, near)
        chosen = served or (match.neighbour if match else None)
        right = None if chosen is None else class_of[int(chosen.answer.key)] == request.answer_class
        if served is None:
            stored[text] = _answer(text, request.text, float(now))
            class_of[text] = request.answer_class
            if match is not None and right is not None:
                arm.learn(match, right, float(now))
        given = Given.STORED if served else Given.MODEL if right is None else Given.EXPLORED
        outcomes.append(Outcome(kind, request.third, given, right, could_hit))
    return outcomes


def _nearest_stored(near: Sequence[tuple[int, float]], stored: Mapping[int, StoredAnswer]) -> list[Neighbour]:
    found: list[Neighbour] = []
    for text, similarity in near:
        if text in stored:
            found.append(Neighbour(stored[text], similarity))
            if len(found) == NEIGHBOURS:
                break
    return found


def _earlier_near(vectors: Matrix, least: float) -> Iterator[list[tuple[int, float]]]:
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        rows = vectors[start : start + ROWS_AT_ONCE] @ vectors[: start + ROWS_AT_ONCE].T
        for row, similarities in enumerate(rows, start=start):
            (near,) = np.nonzero(similarities[:row] >= least)
            order = near[np.argsort(-similarities[near], kind="stable")]
            yield [(int(text), min(float(similarities[text]), 1.0)) for text in order]


def _answer(place: int, text: str, made_s: float) -> StoredAnswer:
    return StoredAnswer(
        key=str(place),
        scope="scope",
        tenant="tenant",
        namespace="default",
        model="model",
        question=text,
        text="",
        made_unix_s=made_s,
        expires_unix_s=float("inf"),
    )


@cache
def _veto(question: str, stored: str, guarding: Guarding) -> bool:
    return (veto if guarding is Guarding.ALL else veto_but_content)(question, stored) is not None
