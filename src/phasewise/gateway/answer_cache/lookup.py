"""One request's look-up in the cache: what it may read and store, and what was found."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from phasewise.core.caching import Bypass, CacheNote, CacheResult, StoredAnswer, Vector
from phasewise.core.request import Endpoint
from phasewise.core.value import value
from phasewise.gateway.answer_cache.headers import CacheWishes
from phasewise.semantic_match.identity import Identity, identify, may_match_semantically, why_bypassed
from phasewise.semantic_match.matching import Considered


@dataclass(slots=True)
class CacheLookup:
    """The look-up of one request; `identity` is None if it bypasses the cache.

    `reads`: it may get a stored answer; `keeps`: its own answer may be stored; `semantic`: it may match other
    wordings. The look-up sets `found`, the answer to serve, or `to_judge`, a near match that is not served
    but judged afterwards; `servable` if it was good enough to be served. `vector` is the question's
    embedding, if computed. `entered_s` is the arrival time: an answer from before a purge must not be stored
    after it.
    """

    identity: Identity | None
    note: CacheNote
    reads: bool = True
    keeps: bool = True
    semantic: bool = False
    entered_s: float = 0.0
    found: StoredAnswer | None = None
    to_judge: Considered | None = None
    servable: bool = False
    vector: Vector | None = None

    @property
    def result(self) -> CacheResult:
        """The result so far."""
        return self.note.result


@value
class CacheEntrance:
    """Says from a request's fields what the cache may do for it. Any process can use it.

    `space` names the vector space of stored questions; `semantic`: there are other wordings to match.
    """

    max_temperature: float
    space: str
    semantic: bool

    def enter(
        self, endpoint: Endpoint, fields: Mapping[str, Any], wishes: CacheWishes, tenant: str
    ) -> CacheLookup:
        """The look-up of a request that has arrived."""
        why = Bypass.OPTED_OUT if wishes.opted_out else why_bypassed(endpoint, fields, self.max_temperature)
        if why is not None:
            return _bypassing(why)
        identity = identify(endpoint, fields, tenant, wishes.namespace, wishes.tags, self.space)
        if identity is None:
            return _bypassing(Bypass.NO_USER_TURN)
        semantic = self.semantic and may_match_semantically(endpoint, identity.question)
        note = CacheNote(CacheResult.MISS, None if wishes.reads else "not_asked")
        return CacheLookup(identity, note, reads=wishes.reads, semantic=semantic, entered_s=time.monotonic())


def _bypassing(why: Bypass) -> CacheLookup:
    return CacheLookup(None, CacheNote(CacheResult.BYPASS, why), reads=False, keeps=False)


@value
class Made:
    """The complete answer that the model made for a request; empty if it holds anything but text.

    `keepable`: it ended by itself and is text only. `stop_reason` is the stop sequence of the request that
    ended it. `start_s` and `stream_s` are the client's waits for the first token and for the rest, None if
    unknown.
    """

    text: str
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    start_s: float | None = None
    stream_s: float | None = None
    stop_reason: int | str | None = None
    keepable: bool = True


class ResponseCache(Protocol):
    """Finds stored answers for requests and stores their own; AnswerCache is one."""

    entrance: CacheEntrance

    async def look_up(self, lookup: CacheLookup) -> None:
        """Look for an answer within the deadline, and set it in `lookup`."""

    def leave(self, lookup: CacheLookup, made: Made | None) -> None:
        """The request has ended; `made` is its answer if complete."""
