"""The answer cache: finds a request's answer within a deadline, stores its own and learns from it.

Any failure here is a cache miss.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from phasewise.core.caching import Bypass, CacheNote, CacheResult, Purge, StoredAnswer
from phasewise.core.errors import EmbedderBusy, EmbedderRejected, EmbedderUnreachable, StoreUnreachable
from phasewise.core.ports import AnswerStore, Embedder
from phasewise.core.request import Endpoint
from phasewise.fleet.config import CacheConfig
from phasewise.gateway.answer_cache.deadline import PROBE, Breaker
from phasewise.gateway.answer_cache.judges import Judge
from phasewise.gateway.answer_cache.learning import WITHIN_S, CacheLearning, JudgedMatch, Kept
from phasewise.gateway.answer_cache.lookup import CacheEntrance, CacheLookup, Made
from phasewise.gateway.answer_cache.report import CacheReport, bare_explanation, explanation, result_of
from phasewise.gateway.answer_cache.semantic import SemanticMatch
from phasewise.gateway.guard import ErrorGuard
from phasewise.semantic_match.identity import (
    DEFAULT_NAMESPACE,
    Identity,
    identify,
    may_match_semantically,
    why_bypassed,
)
from phasewise.semantic_match.matching import Reason

logger = logging.getLogger("phasewise.gateway")

EXACT_SPACE = "exact"
"""The vector space's name without an embedder."""
PURGE_WITHIN_S = 30.0
WAITED_FOR = 0.95
"""The share of the deadline for the look-up. The rest covers delays of this process's event loop."""
NEVER_AUDITED = 1.0

_WHY_MISSED = {
    TimeoutError: "late",
    StoreUnreachable: "store_down",
    EmbedderUnreachable: "embedder_down",
    EmbedderBusy: "embedder_busy",
    EmbedderRejected: "embedder_rejected",
}


class AnswerCache:
    """Serves answers from `store`; semantic matches too, if there are an `embedder` and a `judge`.

    `draw` selects the servable matches that are audited: judged instead of served.
    """

    def __init__(
        self,
        config: CacheConfig,
        store: AnswerStore,
        embedder: Embedder | None,
        judge: Judge | None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.serves = config.mode == "serve"
        self._config = config
        self._store = store
        self._judge = judge
        self._draw = draw
        self._store_breaker = Breaker(
            "the cache's store",
            StoreUnreachable,
            self._prepare_store,
            lambda: store.exact(PROBE, PROBE),
            config.deadline_s,
        )
        self._semantic_match = _semantic_match(config, embedder, store, self._store_breaker)
        self._space = EXACT_SPACE if self._semantic_match is None else self._semantic_match.space
        self.entrance = CacheEntrance(
            config.max_temperature, self._space, semantic=self._semantic_match is not None
        )
        self._report = CacheReport(time.time())
        self._learning = CacheLearning(
            store,
            self._store_breaker,
            judge,
            self._report,
            self._semantic_match,
            counts_one_by_one=config.redis is not None and config.semantic is None,
        )
        self._guard = ErrorGuard("the answer cache")

    @property
    def degraded(self) -> tuple[str, ...]:
        """Its parts that do not answer."""
        breakers = {"store": self._store_breaker}
        if self._semantic_match is not None:
            breakers["embedder"] = self._semantic_match.embedder_breaker
            breakers["search"] = self._semantic_match.search_breaker
        return tuple(name for name, breaker in breakers.items() if breaker.is_open)

    async def start(self) -> None:
        """Start all parts.

        A part that does not answer is retried; raises ConfigError if it can never work.
        """
        if self._semantic_match is not None:
            await self._semantic_match.embedder_breaker.start()
        await self._store_breaker.start()
        if self._semantic_match is not None:
            await self._semantic_match.search_breaker.start()
        await self._learning.start()
        logger.info(
            "answers are kept %s, %s; %s",
            "in this process" if self._config.redis is None else "in Redis",
            "found by exact match only" if self._semantic_match is None else "found semantically too",
            "they are served" if self.serves else "none is served yet (gateway.cache.mode is shadow)",
        )

    async def stop(self) -> None:
        """Finish what can be finished soon, and close all parts."""
        await self._learning.stop()
        await self._store_breaker.stop()
        if self._semantic_match is not None:
            await self._semantic_match.close()
        await self._store.close()

    async def _prepare_store(self) -> None:
        await self._store.start(
            self._space, None if self._semantic_match is None else self._semantic_match.dimensions
        )

    # --- a request ----------------------------------------------------------------------------------------

    async def look_up(self, lookup: CacheLookup) -> None:
        """Find an answer to serve within the deadline; any failure is a miss with its reason."""
        if lookup.identity is None or not lookup.reads:
            return
        started_s = time.monotonic()
        note = CacheNote(CacheResult.MISS, "error")
        try:
            with self._guard:
                until_s = started_s + WAITED_FOR * self._config.deadline_s
                note = await self._look(lookup, lookup.identity, until_s)
        finally:
            lookup.note = replace(note, look_up_s=time.monotonic() - started_s)

    def leave(self, lookup: CacheLookup, made: Made | None) -> None:
        """The request has ended, with a complete answer or without. No request waits for this."""
        with self._guard:
            self._report.count(lookup.note)
            identity = lookup.identity
            if identity is None or lookup.result.served:
                return
            if lookup.to_judge is not None:
                asked_unix_s = time.time() - (time.monotonic() - lookup.entered_s)
                text = made.text if made is not None else ""
                self._learning.judge(
                    JudgedMatch(identity, lookup.to_judge, text, asked_unix_s, lookup.servable)
                )
            if made is not None:
                self._report.unfit += lookup.keeps and not made.keepable
                # In shadow mode an answer that would have been served is not stored again, as if it had been.
                if lookup.keeps and made.keepable and not lookup.result.found:
                    answer = self._answer(lookup, identity, made)
                    self._learning.keep(Kept(answer, lookup.semantic, lookup.entered_s))

    async def _look(self, lookup: CacheLookup, identity: Identity, until_s: float) -> CacheNote:
        try:
            answer = await self._exact(identity, identity.key, until_s - time.monotonic())
            if answer is not None:
                return self._found(lookup, answer, CacheResult.HIT_EXACT)
            if self._semantic_match is None or not lookup.semantic:
                return CacheNote(CacheResult.MISS)
            if not self._learning.caught_up:
                return CacheNote(CacheResult.MISS, "not_learned_yet")
            draw = self._draw()
            alias = self._semantic_match.alias(identity, draw)
            if alias is not None:
                answer = await self._exact(identity, alias, until_s - time.monotonic())
                if answer is not None:
                    return self._found(lookup, answer, CacheResult.HIT_ALIAS)
            return await self._look_around(lookup, identity, self._semantic_match, until_s, draw)
        except (TimeoutError, StoreUnreachable, EmbedderUnreachable) as error:
            return CacheNote(CacheResult.MISS, _WHY_MISSED[type(error)])

    async def _exact(self, identity: Identity, key: str, within_s: float) -> StoredAnswer | None:
        answer = await self._store_breaker.ask(lambda: self._store.exact(key, identity.scope), within_s)
        # The store keeps scopes apart; checked again, so that a faulty store cannot mix them.
        return answer if answer is not None and answer.scope == identity.scope else None

    async def _look_around(
        self, lookup: CacheLookup, identity: Identity, semantic: SemanticMatch, until_s: float, draw: float
    ) -> CacheNote:
        before_s = time.monotonic()
        lookup.vector = await semantic.embed(identity.question, until_s - before_s)
        embedded_s = time.monotonic()
        match = await semantic.match(identity, lookup.vector, until_s - embedded_s, draw)
        result, chosen, embed_s = result_of(match), match.chosen, embedded_s - before_s
        if chosen is None:
            nearest = match.considered[0].neighbour.similarity if match.considered else None
            return CacheNote(result, match.reason, similarity=nearest, embed_s=embed_s)
        similarity = chosen.neighbour.similarity
        lookup.servable = result is CacheResult.HIT_SEMANTIC or match.reason == Reason.AUDIT
        if result is CacheResult.HIT_SEMANTIC:
            if not self.serves:
                lookup.to_judge = chosen
            note = self._found(lookup, chosen.neighbour.answer, result)
            return replace(note, similarity=similarity, embed_s=embed_s)
        lookup.to_judge = chosen
        return CacheNote(result, match.reason, similarity=similarity, embed_s=embed_s)

    def _found(self, lookup: CacheLookup, answer: StoredAnswer, result: CacheResult) -> CacheNote:
        """Serve an answer, or in shadow mode only note it."""
        note = CacheNote(
            result if self.serves else CacheResult(result.replace("hit", "shadow")),
            age_s=max(0.0, time.time() - answer.made_unix_s),
            saved_start_s=answer.start_s,
            saved_stream_s=answer.stream_s,
            saved_tokens=answer.output_tokens,
        )
        # Last: an answer whose note fails is not served.
        if self.serves:
            lookup.found = answer
        return note

    def _answer(self, lookup: CacheLookup, identity: Identity, made: Made) -> StoredAnswer:
        now_unix_s = time.time()
        return StoredAnswer(
            key=identity.key,
            scope=identity.scope,
            tenant=identity.tenant,
            namespace=identity.namespace,
            model=identity.model,
            question=identity.question,
            text=made.text,
            made_unix_s=now_unix_s,
            expires_unix_s=now_unix_s + self._config.ttl_s,
            prompt_tokens=made.prompt_tokens,
            output_tokens=made.output_tokens,
            start_s=made.start_s,
            stream_s=made.stream_s,
            stop_reason=made.stop_reason,
            tags=identity.tags,
            vector=lookup.vector,
        )

    # --- for admins ---------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """What it did, or in shadow mode would have done, for JSON; without any request's text."""
        return {
            "mode": self._config.mode,
            "store": "process" if self._config.redis is None else "redis",
            "entries": self._learning.entries,
            "degraded": list(self.degraded),
            **self._report.reported(
                None if self._semantic_match is None else self._semantic_match.book, self._judge
            ),
        }

    async def purge(self, what: Purge) -> int:
        """Delete answers, and those that this gateway is about to store; returns how many were deleted.

        Raises StoreUnreachable or TimeoutError; what was deleted by then stays deleted.
        """
        if self._store_breaker.is_open:
            raise StoreUnreachable("the cache's store does not answer")
        self._learning.forbid(what)
        # Without the breaker: to delete many answers takes long, which is not a failure of the store.
        async with asyncio.timeout(PURGE_WITHIN_S):
            return await self._store.purge(what)

    async def explain(
        self,
        fields: Mapping[str, Any],
        tenant: str,
        namespace: str = DEFAULT_NAMESPACE,
        show_text: bool = False,
    ) -> dict[str, Any]:
        """What the cache would do with such a chat request if it served; nothing is stored or learned.

        Raises StoreUnreachable, EmbedderUnreachable or TimeoutError.
        """
        why = why_bypassed(Endpoint.CHAT, fields, self._config.max_temperature)
        identity = None if why else identify(Endpoint.CHAT, fields, tenant, namespace, (), self._space)
        if identity is None:
            return bare_explanation(CacheResult.BYPASS, why or Bypass.NO_USER_TURN)
        if await self._exact(identity, identity.key, WITHIN_S) is not None:
            return bare_explanation(CacheResult.HIT_EXACT, None, identity.domain)
        if self._semantic_match is None or not may_match_semantically(Endpoint.CHAT, identity.question):
            return bare_explanation(CacheResult.MISS, "exact_only", identity.domain)
        if not self._learning.caught_up:
            return bare_explanation(CacheResult.MISS, "not_learned_yet", identity.domain)
        alias = self._semantic_match.alias(identity, NEVER_AUDITED)
        if alias is not None and await self._exact(identity, alias, WITHIN_S) is not None:
            return bare_explanation(CacheResult.HIT_ALIAS, None, identity.domain)
        vector = await self._semantic_match.embed(identity.question, WITHIN_S)
        match = await self._semantic_match.match(identity, vector, WITHIN_S, NEVER_AUDITED)
        return explanation(match, identity.domain, time.time(), show_text)


def _semantic_match(
    config: CacheConfig, embedder: Embedder | None, store: AnswerStore, store_breaker: Breaker
) -> SemanticMatch | None:
    if embedder is None or config.semantic is None:
        return None
    return SemanticMatch(config.semantic, embedder, store, store_breaker, config.deadline_s)
