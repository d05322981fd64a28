"""The protocols that adapters and stores fulfil, so that callers name what they need and not who does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phasewise.model.caching import Lesson, Neighbour, Purge, StoredAnswer, Vector
from phasewise.model.limits import Lease, Limits, QuotaAnswer
from phasewise.model.timeline import Timeline


class TimelineSink(Protocol):
    """Takes each request's timeline once, when the request has ended."""

    def record(self, timeline: Timeline) -> None:
        """Keep or count the timeline; must not block."""


class QuotaSettlement(Protocol):
    """Where requests' leases are given back."""

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """The request has ended, having used so many tokens, or nobody knows how many; must not block."""


class Quotas(QuotaSettlement, Protocol):
    """Counts requests against their keys' limits."""

    async def take(self, key_id: str, limits: Limits, tokens: int) -> QuotaAnswer:
        """Count one request. If this is cancelled, whatever it took is given back."""


class Embedder(Protocol):
    """Turns a text into a place in space, near to those of like meaning.

    `space` names the model: vectors of two spaces are never compared.
    """

    @property
    def space(self) -> str:
        """Which model's vectors these are; letters, digits and hyphens."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector holds; known once `start` has been awaited."""

    async def start(self) -> None:
        """Make ready; raises EmbedderUnreachable, or ConfigError for what will never work."""

    async def embed(self, text: str) -> Vector:
        """The text's vector; raises EmbedderUnreachable. Deadlines are the caller's."""

    async def close(self) -> None:
        """Let go of what is held."""


class AnswerStore(Protocol):
    """Keeps answers until they expire. Every method raises StoreUnreachable; deadlines are the caller's.

    `scope` is a wall: no method returns an answer of another one than asked for.
    """

    async def start(self, space: str, dimensions: int | None) -> None:
        """Make ready for vectors of this space; without `dimensions`, for exact answers alone."""

    async def exact(self, key: str, scope: str) -> StoredAnswer | None:
        """The answer to this very request, its vector left out."""

    async def nearest(self, scope: str, vector: Vector, count: int) -> list[Neighbour]:
        """The nearest of the scope's answers that have a vector, nearest first, their vectors left out."""

    async def put(self, answer: StoredAnswer) -> None:
        """Keep an answer until it expires, in place of one with the same key."""

    async def purge(self, what: Purge) -> int:
        """Forget answers; returns how many."""

    async def size(self) -> int:
        """How many answers are kept."""

    async def teach(self, lesson: Lesson) -> None:
        """Keep a lesson for all who share this store."""

    async def lessons(self, after: str) -> tuple[str, Sequence[Lesson]]:
        """The next lessons after a place (`""`: the oldest kept), oldest first, and the new place.

        There may be more of them, until the place stays where it was.
        """

    async def close(self) -> None:
        """Let go of what is held."""
