"""Fills a store with answers around real questions, and teaches it as a former life of it would have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import orjson

from phasewise.clients.embedders import unit_vector
from phasewise.clients.redis_answers import RedisAnswers
from phasewise.core.caching import Neighbour, StoredAnswer, Vector
from phasewise.fleet.config import JudgeConfig, SemanticConfig
from phasewise.gateway.answer_cache.semantic import evidence_basis
from phasewise.semantic_match.evidence import Budget, EvidenceBook
from phasewise.semantic_match.lessons import Lesson, LessonKind, write_lesson
from phasewise.semantic_match.matching import MatchRules, MatchVerdict, consider, lesson_of

AT_ONCE = 64
NOISE = 0.8
"""Length of what is added to a real question's vector: the cosine to it becomes .78, too far for a match."""
MOST_LESSONS = 5_000
BUDGET, CONFIDENCE = 0.01, 0.95


async def fill(store: RedisAnswers, like: StoredAnswer, around: Sequence[Vector], count: int) -> None:
    """Put answers of the same scope into the store, strewn around these vectors."""
    rng = np.random.default_rng(1)
    centres = np.array([np.frombuffer(vector, "<f4") for vector in around])
    scale = NOISE / np.sqrt(centres.shape[1])
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        vectors = centres[[number % len(centres) for number in numbers]]
        vectors = vectors + rng.standard_normal(vectors.shape) * scale
        answers = (
            replace(like, key=f"filler-{number}", question=f"matter {number}?", vector=unit_vector(vector))
            for number, vector in zip(numbers, vectors, strict=True)
        )
        await asyncio.gather(*map(store.put, answers))


async def teach(
    store: RedisAnswers, pairs: Sequence[tuple[str, str]], similarities: Sequence[float], like: StoredAnswer
) -> int:
    """Teach the store by verified outcomes that these rewordings are right, until all of them are served.

    First the judge becomes trusted, by planted pairs. Each lesson is of another request: pairs count once.
    """
    book, rules = EvidenceBook(Budget(BUDGET, CONFIDENCE)), MatchRules(min_similarity=0.85, audit_share=1e-6)
    domain, taught = f"{like.tenant}/{like.namespace}/{like.model}", 0
    basis = evidence_basis(SemanticConfig(judge=JudgeConfig(model=like.model)))

    async def learn(lesson: Lesson) -> None:
        nonlocal taught
        taught += 1
        if taught > MOST_LESSONS:
            raise SystemExit(f"error: nothing is proven by {MOST_LESSONS} lessons")
        book.learn(lesson)
        await store.teach(write_lesson(lesson))

    while not book.judge.is_trusted:
        kind = LessonKind.PLANTED_DIFFERENT
        await learn(Lesson("", 0, "", right=True, at_unix_s=time.time(), basis=basis, kind=kind))
    left = True
    while left:
        left = False
        for (stored, asked), similarity in zip(pairs, similarities, strict=True):
            neighbour = Neighbour(replace(like, question=stored), similarity)
            match = consider(asked, [neighbour], book, rules, domain, draw=0.5)
            if match.chosen is None:
                raise SystemExit(f"error: the pair {stored!r} is not even a candidate ({match.reason})")
            if match.verdict is MatchVerdict.EXPLORE:
                left = True
                await learn(lesson_of(match.chosen, f"{asked} {taught}", domain, True, time.time(), basis))
    return taught


async def one_stored(redis_url: str, prefix: str) -> StoredAnswer:
    """Some answer that a gateway has put into this Redis: what the others are to be like."""
    import redis.asyncio  # noqa: PLC0415 - only for this look behind the store's back

    client = redis.asyncio.from_url(redis_url)
    try:
        name = await anext(client.scan_iter(match=f"{prefix}:answer:*"))
        answer = await client.hget(name, "answer")
    finally:
        await client.aclose()
    if answer is None:
        raise SystemExit("error: the stored answer expired before it was read. hint: run it again")
    fields = orjson.loads(answer)
    return StoredAnswer(**{**fields, "tags": tuple(fields["tags"])})
