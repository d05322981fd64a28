"""The cache's desk: takes a request in, looks for its answer in time, and sees to what its own answer leaves.

What may be answered so is caching/'s to say, keeping and embedding the adapters', serving what was found the
flow driver's. Whatever fails here is a miss.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from phasewise.caching.bypass import may_match_by_meaning, why_bypassed
from phasewise.caching.identity import DEFAULT_NAMESPACE, Identity, identify
from phasewise.config import CacheConfig
from phasewise.errors import EmbedderBusy, EmbedderRefused, EmbedderUnreachable, StoreUnreachable
from phasewise.gateway.cache_explaining import bare_explanation, explanation, result_of
from phasewise.gateway.cache_guard import PROBE, Breaker
from phasewise.gateway.cache_headers import cache_wishes
from phasewise.gateway.cache_learning import WITHIN_S, CacheLearning, Comparison, Kept
from phasewise.gateway.cache_meaning import Meaning
from phasewise.gateway.cache_report import CacheReport
from phasewise.gateway.cache_turn import CacheTurn, Made
from phasewise.gateway.guard import Guard
from phasewise.gateway.judges import Judge
from phasewise.model.caching import Bypass, CacheNote, CacheResult, Neighbour, Purge, StoredAnswer
from phasewise.model.request import Endpoint
from phasewise.ports import AnswerStore, Embedder

logger = logging.getLogger("phasewise.gateway")

EXACT_SPACE = "exact"
"""Stands for the embedder's where there is none."""
PURGE_WITHIN_S = 30.0
WAITED_FOR = 0.95
"""Of the deadline. The rest is for this process's own turns between an answer that is late and going on."""
NEVER_AUDITED = 1.0

_SHADOW_OF = {
    CacheResult.HIT_EXACT: CacheResult.SHADOW_EXACT,
    CacheResult.HIT_SEMANTIC: CacheResult.SHADOW_SEMANTIC,
}
_WHY_MISSED = {
    TimeoutError: "late",
    StoreUnreachable: "store_down",
    EmbedderUnreachable: "embedder_down",
    EmbedderBusy: "embedder_busy",
    EmbedderRefused: "embedder_refused",
}


class AnswerCache:
    """Answers from `store` what it may; by meaning too, where there is an `embedder`.

    `draw` is the lot by which matches that could be served are checked all the same.
    """

    def __init__(
        self,
        config: CacheConfig,
        store: AnswerStore,
        embedder: Embedder | None,
        judge: Judge,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.serves = config.mode == "serve"
        self._config = config
        self._store = store
        self._draw = draw
        self._store_breaker = Breaker(
            "the cache's store",
            StoreUnreachable,
            self._prepare_store,
            lambda: store.exact(PROBE, PROBE),
            config.deadline_s,
        )
        self._meaning = _meaning(config, embedder, store, self._store_breaker)
        self._space = EXACT_SPACE if self._meaning is None else self._meaning.space
        bound = None if self._meaning is None else self._meaning.book.bound
        self._report = CacheReport(time.time(), bound)
        self._learning = CacheLearning(
            store,
            self._store_breaker,
            judge,
            self._report,
            self._meaning,
            counts_one_by_one=config.redis is not None and config.semantic is None,
        )
        self._guard = Guard("the answer cache")

    @property
    def degraded(self) -> tuple[str, ...]:
        """Which of its parts do not answer."""
        breakers = {"store": self._store_breaker}
        if self._meaning is not None:
            breakers["embedder"] = self._meaning.embedder_breaker
            breakers["search"] = self._meaning.search_breaker
        return tuple(name for name, breaker in breakers.items() if breaker.is_open)

    async def start(self) -> None:
        """Make ready. What does not answer yet may later; raises ConfigError for what will never work."""
        if self._meaning is not None:
            await self._meaning.embedder_breaker.start()
        await self._store_breaker.start()
        if self._meaning is not None:
            await self._meaning.search_breaker.start()
        await self._learning.start()
        logger.info(
            "answers are kept %s, %s; %s",
            "in this process" if self._config.redis is None else "in Redis",
            "found by the same words alone" if self._meaning is None else "found by meaning too",
            "they are served" if self.serves else "none is served yet (gateway.cache.mode is shadow)",
        )

    async def stop(self) -> None:
        """Finish what can be finished soon, and let everything go."""
        await self._learning.stop()
        await self._store_breaker.stop()
        if self._meaning is not None:
            await self._meaning.close()
        await self._store.close()

    async def _prepare_store(self) -> None:
        await self._store.start(self._space, None if self._meaning is None else self._meaning.dimensions)

    # --- a request ----------------------------------------------------------------------------------------

    def enter(
        self, endpoint: Endpoint, fields: Mapping[str, Any], headers: Mapping[bytes, bytes], tenant: str
    ) -> CacheTurn:
        """Take a request in; raises RequestRefused for headers that cannot be meant."""
        wishes = cache_wishes(headers)
        why = Bypass.OPTED_OUT if wishes.opted_out else self._why_bypassed(endpoint, fields)
        if why is not None:
            return _bypassing(why)
        identity = identify(endpoint, fields, tenant, wishes.namespace, wishes.tags, self._space)
        if identity is None:
            return _bypassing(Bypass.NO_USER_TURN)
        by_meaning = self._meaning is not None and may_match_by_meaning(endpoint, identity.question)
        note = CacheNote(CacheResult.MISS, None if wishes.reads else "not_asked")
        return CacheTurn(
            identity, note, reads=wishes.reads, by_meaning=by_meaning, entered_s=time.monotonic()
        )

    async def look_up(self, turn: CacheTurn) -> None:
        """Find what may be served, within the deadline; whatever goes wrong is a miss with its reason."""
        if turn.identity is None or not turn.reads:
            return
        started_s = time.monotonic()
        note = CacheNote(CacheResult.MISS, "error")
        try:
            with self._guard:
                until_s = started_s + WAITED_FOR * self._config.deadline_s
                note = await self._look(turn, turn.identity, until_s)
        finally:
            turn.note = replace(note, look_up_s=time.monotonic() - started_s)

    def leave(self, turn: CacheTurn, made: Made | None) -> None:
        """The request has ended, with a complete answer of the model's or without; nobody waits for this."""
        with self._guard:
            self._report.count(turn.note)
            if turn.identity is None or turn.result.served:
                return
            if made is not None:
                self._report.unfit += turn.keeps and not made.keepable
                self._learn_from(turn, turn.identity, made)
            elif turn.near is not None:
                self._learning.never_known(turn.match)

    def _why_bypassed(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> Bypass | None:
        return why_bypassed(endpoint, fields, self._config.max_temperature)

    async def _look(self, turn: CacheTurn, identity: Identity, until_s: float) -> CacheNote:
        try:
            answer = await self._exact(identity, until_s - time.monotonic())
            if answer is not None:
                return self._found(turn, Neighbour(answer, 1.0), CacheResult.HIT_EXACT)
            if self._meaning is None or not turn.by_meaning:
                return CacheNote(CacheResult.MISS)
            if not self._learning.caught_up:
                return CacheNote(CacheResult.MISS, "not_learned_yet")
            return await self._look_around(turn, identity, self._meaning, until_s)
        except (TimeoutError, StoreUnreachable, EmbedderUnreachable) as error:
            return CacheNote(CacheResult.MISS, _WHY_MISSED[type(error)])

    async def _exact(self, identity: Identity, within_s: float) -> StoredAnswer | None:
        answer = await self._store_breaker.ask(
            lambda: self._store.exact(identity.key, identity.scope), within_s
        )
        # The store keeps scopes apart. Nothing follows from it if one does not.
        return answer if answer is not None and answer.scope == identity.scope else None

    async def _look_around(
        self, turn: CacheTurn, identity: Identity, meaning: Meaning, until_s: float
    ) -> CacheNote:
        before_s = time.monotonic()
        turn.vector = await meaning.embed(identity.question, until_s - before_s)
        embedded_s = time.monotonic()
        match = await meaning.match(identity, turn.vector, until_s - embedded_s, self._draw())
        result, neighbour, embed_s = result_of(match), match.neighbour, embedded_s - before_s
        if neighbour is None:
            nearest = match.considered[0].neighbour.similarity if match.considered else None
            return CacheNote(result, match.reason, similarity=nearest, embed_s=embed_s)
        turn.match = match
        if result is CacheResult.HIT_SEMANTIC:
            return replace(self._found(turn, neighbour, result), embed_s=embed_s)
        turn.near = neighbour
        return CacheNote(result, match.reason, similarity=neighbour.similarity, embed_s=embed_s)

    def _found(self, turn: CacheTurn, neighbour: Neighbour, result: CacheResult) -> CacheNote:
        """Give an answer out, or in shadow mode only note it, to be compared with what the model says."""
        answer = neighbour.answer
        note = CacheNote(
            result if self.serves else _SHADOW_OF[result],
            similarity=neighbour.similarity if result is CacheResult.HIT_SEMANTIC else None,
            age_s=max(0.0, time.time() - answer.made_unix_s),
            saved_start_s=answer.start_s,
            saved_stream_s=answer.stream_s,
            saved_tokens=answer.output_tokens,
        )
        # Last: what cannot be noted is not given out either.
        if self.serves:
            turn.found = answer
        else:
            turn.near = neighbour
        return note

    def _learn_from(self, turn: CacheTurn, identity: Identity, made: Made) -> None:
        if turn.near is not None:
            asked_unix_s = time.time() - (time.monotonic() - turn.entered_s)
            stored, made_now = turn.near.answer.text, made.text
            self._learning.compare(
                Comparison(identity.question, stored, made_now, identity.domain, asked_unix_s, turn.match)
            )
        # What would have been served is not kept in shadow mode either: it shows what serving would do.
        if turn.keeps and made.keepable and turn.result not in _SHADOW_OF.values():
            answer = self._answer(turn, identity, made)
            self._learning.keep(Kept(answer, turn.by_meaning, turn.entered_s))

    def _answer(self, turn: CacheTurn, identity: Identity, made: Made) -> StoredAnswer:
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
            vector=turn.vector,
        )

    # --- for admins ---------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """What it did, or in shadow mode would have done, for JSON; without a word of anybody's."""
        return {
            "mode": self._config.mode,
            "semantic": self._meaning is not None,
            "store": "process" if self._config.redis is None else "redis",
            "entries": self._learning.entries,
            "degraded": list(self.degraded),
            **self._report.told(None if self._meaning is None else self._meaning.book),
        }

    async def purge(self, what: Purge) -> int:
        """Forget answers, those on their way to being kept by this gateway too; returns how many were kept.

        Raises StoreUnreachable or TimeoutError; what was forgotten by then stays forgotten.
        """
        if self._store_breaker.is_open:
            raise StoreUnreachable("the cache's store does not answer")
        self._learning.forbid(what)
        # Not by the breaker: to forget many takes long, and says nothing against the store.
        async with asyncio.timeout(PURGE_WITHIN_S):
            return await self._store.purge(what)

    async def explain(
        self,
        fields: Mapping[str, Any],
        tenant: str,
        namespace: str = DEFAULT_NAMESPACE,
        show_text: bool = False,
    ) -> dict[str, Any]:
        """What would become of such a chat request if the cache served; nothing is kept or learned of it.

        Raises StoreUnreachable, EmbedderUnreachable or TimeoutError.
        """
        why = self._why_bypassed(Endpoint.CHAT, fields)
        identity = None if why else identify(Endpoint.CHAT, fields, tenant, namespace, (), self._space)
        if identity is None:
            return bare_explanation(CacheResult.BYPASS, why or Bypass.NO_USER_TURN)
        if await self._exact(identity, WITHIN_S) is not None:
            return bare_explanation(CacheResult.HIT_EXACT, None, identity.domain)
        if self._meaning is None or not may_match_by_meaning(Endpoint.CHAT, identity.question):
            return bare_explanation(CacheResult.MISS, "exact_only", identity.domain)
        if not self._learning.caught_up:
            return bare_explanation(CacheResult.MISS, "not_learned_yet", identity.domain)
        vector = await self._meaning.embed(identity.question, WITHIN_S)
        match = await self._meaning.match(identity, vector, WITHIN_S, NEVER_AUDITED)
        return explanation(match, self._meaning.book, identity.domain, time.time(), show_text)


def _meaning(
    config: CacheConfig, embedder: Embedder | None, store: AnswerStore, store_breaker: Breaker
) -> Meaning | None:
    if embedder is None or config.semantic is None:
        return None
    return Meaning(config.semantic, embedder, store, store_breaker, config.deadline_s)


def _bypassing(why: Bypass) -> CacheTurn:
    return CacheTurn(None, CacheNote(CacheResult.BYPASS, why), reads=False, keeps=False)
