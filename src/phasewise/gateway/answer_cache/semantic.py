"""Semantic matches: embeds a question, searches its neighbours and decides which may be served."""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import replace
from hashlib import blake2b

from phasewise.core.caching import Vector
from phasewise.core.errors import EmbedderBusy, EmbedderRejected, EmbedderUnreachable, StoreUnreachable
from phasewise.core.ports import AnswerStore, Embedder
from phasewise.fleet.config import SemanticConfig
from phasewise.gateway.answer_cache.deadline import PROBE, Breaker
from phasewise.semantic_match.evidence import Budget, EvidenceBook
from phasewise.semantic_match.identity import Identity
from phasewise.semantic_match.judging import TASK
from phasewise.semantic_match.matching import EVIDENCE_VERSION, Match, MatchRules, consider

NEIGHBOURS = 4
"""Considered neighbours: if a guard forbids the nearest, a rewording may follow it."""
EMBEDDING_SHARE = 0.5
"""The share of a look-up's time for the embedding; the rest is for the search."""
NEWS_SHARE = 0.2
"""The weight of the latest embedding in the usual time of one."""
_A_WORD = "word"


def evidence_basis(config: SemanticConfig) -> str:
    """An id of the settings that outcomes depend on: with other settings, learning starts again."""
    judge = config.judge
    measure = judge.min_score if judge.kind == "score" else None
    named = repr((EVIDENCE_VERSION, TASK, config.min_similarity, judge.kind, judge.model, measure))
    return blake2b(named.encode(), digest_size=6).hexdigest()


class SemanticMatch:
    """The semantic tier on a store behind `store_breaker`.

    Its search has a breaker of its own: a slow search must not disable the much cheaper exact look-ups.
    """

    def __init__(
        self,
        config: SemanticConfig,
        embedder: Embedder,
        store: AnswerStore,
        store_breaker: Breaker,
        deadline_s: float,
    ) -> None:
        self.book = EvidenceBook(Budget(config.max_wrong_answers, config.confidence))
        self.basis = evidence_basis(config)
        self.embedder_breaker = Breaker(
            "the cache's embedder",
            EmbedderUnreachable,
            self._prepare,
            lambda: embedder.embed(_A_WORD),
            deadline_s,
            excused=(EmbedderBusy, EmbedderRejected),
        )
        self.search_breaker = Breaker(
            "the cache's vector search",
            StoreUnreachable,
            self._prepare_search,
            lambda: store.nearest(PROBE, self._some_vector(), 1),
            deadline_s,
        )
        self._rules = MatchRules(config.min_similarity, config.audit_share)
        self._embedder = embedder
        self._store = store
        self._under_way = 0
        self._usual_s = 0.0
        self._store_breaker = store_breaker

    @property
    def space(self) -> str:
        """The id of the vector space: only vectors of the same space may be compared."""
        return self._embedder.space

    @property
    def dimensions(self) -> int | None:
        """The length of vectors; None before the embedder has answered."""
        return self._embedder.dimensions or None

    def alias(self, identity: Identity, draw: float) -> str | None:
        """The key of a request that was found to ask the same; None for the share that is audited."""
        return None if draw < self._rules.audit_share else self.book.alias(identity.domain, identity.key)

    async def embed(self, question: str, within_s: float) -> Vector:
        """The question's vector; raises TimeoutError or EmbedderUnreachable.

        A text that would wait too long is rejected at once: its vector would be too late, and would delay
        those behind it.
        """
        ahead = self._under_way
        if ahead and (ahead + 1) * self._usual_s > within_s * EMBEDDING_SHARE:
            raise EmbedderBusy(f"{ahead} texts already wait for the embedder")
        self._under_way += 1
        began_s = time.monotonic()
        try:
            return await self.embedder_breaker.ask(lambda: self._embedder.embed(question), within_s)
        finally:
            self._under_way -= 1
            each_s = (time.monotonic() - began_s) / (ahead + 1)
            self._usual_s += (each_s - self._usual_s) * NEWS_SHARE

    async def match(self, identity: Identity, vector: Vector, within_s: float, draw: float) -> Match:
        """Decide about the nearest stored answers; raises TimeoutError or StoreUnreachable."""
        near = await self.search_breaker.ask(
            lambda: self._store.nearest(identity.scope, vector, NEIGHBOURS), within_s
        )
        # The store keeps scopes apart; checked again, so that a faulty store cannot mix them.
        same_scope = [it for it in near if it.answer.scope == identity.scope]
        match = consider(identity.question, same_scope, self.book, self._rules, identity.domain, draw)
        chosen, audited = match.chosen, self._rules.audit_share
        if chosen is None or draw >= audited or chosen.stands_for != 1.0:
            return match
        if self.book.alias(identity.domain, identity.key) != chosen.neighbour.answer.key:
            return match
        # Not its region is audited, but an alias that would have been served.
        return replace(match, chosen=replace(chosen, stands_for=1 / audited))

    async def close(self) -> None:
        """Close the embedder."""
        await asyncio.gather(self.embedder_breaker.stop(), self.search_breaker.stop())
        await self._embedder.close()

    async def _prepare(self) -> None:
        if not self._embedder.dimensions:
            await self._embedder.start()

    async def _prepare_search(self) -> None:
        if self.dimensions is None or self._store_breaker.is_open:
            raise StoreUnreachable("the cache's store or embedder does not answer")
        # The store may have started for exact matches only, before the length of vectors was known.
        await self._store.start(self.space, self.dimensions)

    def _some_vector(self) -> Vector:
        return struct.pack(f"<{self._embedder.dimensions}f", 1.0, *[0.0] * (self._embedder.dimensions - 1))
