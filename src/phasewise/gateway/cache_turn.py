"""One request and the cache: what it may take and leave there, what was found, what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.caching.identity import Identity
from phasewise.model.caching import CacheNote, CacheResult, Neighbour, StoredAnswer, Vector


@dataclass(slots=True)
class CacheTurn:
    """A request as the cache sees it; `identity` is None for one that bypasses it.

    `reads`: a stored answer may be given; `keeps`: its own may be kept. `found` is what is to be served, set
    by the look-up, and `near` what was near but is not served: compared with the model's answer afterwards,
    to learn from. `vector` is the question's, if it was embedded.
    """

    identity: Identity | None
    note: CacheNote
    reads: bool = True
    keeps: bool = True
    found: StoredAnswer | None = None
    near: Neighbour | None = None
    vector: Vector | None = None

    @property
    def result(self) -> CacheResult:
        """What the request had of the cache so far."""
        return self.note.result
