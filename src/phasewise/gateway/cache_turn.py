"""One request and the cache: what it may take and leave there, what was found, what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from phasewise.caching.identity import Identity
from phasewise.model.caching import CacheNote, CacheResult, Neighbour, StoredAnswer, Vector
from phasewise.model.noun import noun

if TYPE_CHECKING:
    from phasewise.caching.matching import Match


@noun
class Made:
    """A complete answer that the model gave: text alone, ended by itself.

    `start_s` and `stream_s` are what its client saw of prefill and decode; None where nobody saw.
    """

    text: str
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    start_s: float | None = None
    stream_s: float | None = None


@dataclass(slots=True)
class CacheTurn:
    """A request as the cache sees it; `identity` is None for one that bypasses it.

    `reads`: a stored answer may be given; `keeps`: its own may be kept; `by_meaning`: other words could ask
    the same. `found` is what is to be served, set by the look-up, and `near` what was near but is not served:
    compared with the model's answer afterwards, to learn from. `match` is what was made of its neighbours, if
    any were looked for, and `vector` the question's, if it was embedded.
    """

    identity: Identity | None
    note: CacheNote
    reads: bool = True
    keeps: bool = True
    by_meaning: bool = False
    found: StoredAnswer | None = None
    near: Neighbour | None = None
    match: Match | None = None
    vector: Vector | None = None

    @property
    def result(self) -> CacheResult:
        """What the request had of the cache so far."""
        return self.note.result
