"""One request and the cache: what it may take and leave there, what was found, what came of it.

What is done with it is the desk's (answer_cache.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from phasewise.caching.identity import Identity
from phasewise.caching.matching import Match
from phasewise.model.caching import CacheNote, CacheResult, Neighbour, StoredAnswer, Vector
from phasewise.model.noun import noun
from phasewise.model.request import Endpoint


@dataclass(slots=True)
class CacheTurn:
    """A request as the cache sees it; `identity` is None for one that bypasses it.

    `reads`: a stored answer may be given; `keeps`: its own may be kept; `by_meaning`: other words could ask
    the same. `found` is what is to be served, set by the look-up, and `near` what was near but is not served:
    compared with the model's answer afterwards, to learn from. `match` is what was made of its neighbours, if
    any were looked for, and `vector` the question's, if it was embedded. `entered_s` is when it came: an
    answer that is older than a purge must not be kept after it.
    """

    identity: Identity | None
    note: CacheNote
    reads: bool = True
    keeps: bool = True
    by_meaning: bool = False
    entered_s: float = 0.0
    found: StoredAnswer | None = None
    near: Neighbour | None = None
    match: Match | None = None
    vector: Vector | None = None

    @property
    def result(self) -> CacheResult:
        """What the request had of the cache so far."""
        return self.note.result


@noun
class Made:
    """The answer that was made for a request, all of it; empty if it is anything else than text.

    `keepable`: it stopped by itself and is text, nothing else. Whatever else it may be, cut off or a refusal,
    is what the model says to this question, so that a stored answer is compared with it all the same.
    `stop_reason` is what it stopped at, of what the request named. `start_s` and `stream_s` are what its
    client waited for the first token and for the rest, None where nobody saw.
    """

    text: str
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    start_s: float | None = None
    stream_s: float | None = None
    stop_reason: int | str | None = None
    keepable: bool = True


class AnswerDesk(Protocol):
    """Where a request asks for a stored answer and leaves its own; AnswerCache is one."""

    def enter(
        self, endpoint: Endpoint, fields: Mapping[str, Any], headers: Mapping[bytes, bytes], tenant: str
    ) -> CacheTurn:
        """A request has come; raises RequestRefused if its headers ask for what cannot be."""

    async def look_up(self, turn: CacheTurn) -> None:
        """Look for an answer, no longer than the deadline; what was found stands in the turn."""

    def leave(self, turn: CacheTurn, made: Made | None) -> None:
        """The request has ended; `made` is its answer if it had a whole one."""
