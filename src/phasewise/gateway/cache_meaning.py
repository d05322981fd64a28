"""Finds answers to other words of the same meaning: embeds a question and has those near it judged.

Which match is safe is caching/matching.py's to say; what is learned reaches the book by cache_learning.py.
"""

from __future__ import annotations

import asyncio
import struct
import time
from hashlib import blake2b

from phasewise.caching.bound import Bound
from phasewise.caching.evidence_book import EvidenceBook
from phasewise.caching.identity import Identity
from phasewise.caching.matching import EVIDENCE_VERSION, Match, Rules, consider
from phasewise.config import SemanticConfig
from phasewise.errors import EmbedderBusy, EmbedderRefused, EmbedderUnreachable, StoreUnreachable
from phasewise.gateway.cache_guard import PROBE, Breaker
from phasewise.model.caching import Vector
from phasewise.ports import AnswerStore, Embedder

NEIGHBOURS = 4
"""Looked at: where a guard forbids the nearest, a rewording may stand behind it."""
EMBEDDING_SHARE = 0.5
"""Of the time a request has: the rest is for the search."""
NEWS_SHARE = 0.2
"""How much the latest embedding counts in how long one usually takes."""
_A_WORD = "word"


def evidence_basis(config: SemanticConfig) -> str:
    """Names what outcomes are judged by, and of what they are: under another, learning starts anew."""
    judge = config.judge
    measure = {"text": None, "embedding": judge.similarity, "model": judge.model}[judge.kind]
    named = repr((EVIDENCE_VERSION, config.min_similarity, judge.kind, measure))
    return blake2b(named.encode(), digest_size=6).hexdigest()


class Meaning:
    """The semantic tier, on a store that `store_breaker` stands before.

    Its search has a breaker of its own: one that has become slow must not take exact answers with it, which
    cost a fraction of it.
    """

    def __init__(
        self,
        config: SemanticConfig,
        embedder: Embedder,
        store: AnswerStore,
        store_breaker: Breaker,
        deadline_s: float,
    ) -> None:
        self.book = EvidenceBook(Bound(config.max_wrong_answers, config.confidence))
        self.basis = evidence_basis(config)
        self.embedder_breaker = Breaker(
            "the cache's embedder",
            EmbedderUnreachable,
            self._prepare,
            lambda: embedder.embed(_A_WORD),
            deadline_s,
            excused=(EmbedderBusy, EmbedderRefused),
        )
        self.search_breaker = Breaker(
            "the cache's vector search",
            StoreUnreachable,
            self._prepare_search,
            lambda: store.nearest(PROBE, self._some_vector(), 1),
            deadline_s,
        )
        self._rules = Rules(config.min_similarity, config.audit_share)
        self._embedder = embedder
        self._store = store
        self._under_way = 0
        self._usual_s = 0.0
        self._store_breaker = store_breaker

    @property
    def space(self) -> str:
        """Which vectors may be compared."""
        return self._embedder.space

    @property
    def dimensions(self) -> int | None:
        """How long vectors are; None before the embedder could be asked."""
        return self._embedder.dimensions or None

    async def embed(self, question: str, within_s: float) -> Vector:
        """The question's vector; raises TimeoutError or EmbedderUnreachable.

        Who would wait behind others for too long is turned away at once: its vector would come too late, and
        computing it would make those behind it late, too.
        """
        ahead = self._under_way
        if ahead and (ahead + 1) * self._usual_s > within_s * EMBEDDING_SHARE:
            raise EmbedderBusy(f"{ahead} texts wait to be embedded already")
        self._under_way += 1
        began_s = time.monotonic()
        try:
            return await self.embedder_breaker.ask(lambda: self._embedder.embed(question), within_s)
        finally:
            self._under_way -= 1
            each_s = (time.monotonic() - began_s) / (ahead + 1)
            self._usual_s += (each_s - self._usual_s) * NEWS_SHARE

    async def match(self, identity: Identity, vector: Vector, within_s: float, draw: float) -> Match:
        """What may be done with what is near; raises TimeoutError or StoreUnreachable."""
        near = await self.search_breaker.ask(
            lambda: self._store.nearest(identity.scope, vector, NEIGHBOURS), within_s
        )
        # The store keeps scopes apart. Nothing follows from it if one does not.
        same_scope = [it for it in near if it.answer.scope == identity.scope]
        return consider(identity.question, same_scope, self.book, self._rules, identity.domain, draw)

    async def close(self) -> None:
        """Let the embedder go."""
        await asyncio.gather(self.embedder_breaker.stop(), self.search_breaker.stop())
        await self._embedder.close()

    async def _prepare(self) -> None:
        if not self._embedder.dimensions:
            await self._embedder.start()

    async def _prepare_search(self) -> None:
        if self.dimensions is None or self._store_breaker.is_open:
            raise StoreUnreachable("its store or its embedder is away")
        # It may have been made ready for exact answers alone, before anybody knew how long vectors are.
        await self._store.start(self.space, self.dimensions)

    def _some_vector(self) -> Vector:
        return struct.pack(f"<{self._embedder.dimensions}f", 1.0, *[0.0] * (self._embedder.dimensions - 1))
