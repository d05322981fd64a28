"""The protocols that clients and stores implement, so that callers do not depend on implementations.

With the types of their answers that nothing else defines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from phasewise.core.caching import Neighbour, Purge, StoredAnswer, Vector
from phasewise.core.request import Limits
from phasewise.core.timeline import Timeline
from phasewise.core.trace_context import TraceLoss, TraceSpan


class TimelineSink(Protocol):
    """Takes each request's timeline once, when the request has ended."""

    def record(self, timeline: Timeline) -> None:
        """Keep or count the timeline; must not block."""


class TraceExporter(Protocol):
    """Sends spans to a backend in the background."""

    def send(self, timeline: Timeline, spans: Sequence[TraceSpan]) -> None:
        """Queue the spans of one request; must not block."""

    def drop(self, reason: TraceLoss) -> None:
        """Count a request whose spans are not sent."""


class LimitKind(StrEnum):
    """Which bound was reached."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Lease:
    """What one request took of its key's limits: one of its concurrent requests, and its expected tokens.

    `shared` says where it is counted: in the store that all gateways share, or in this process.
    """

    lease_id: str
    key_id: str
    tokens: int
    shared: bool


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A bound was reached; the client may retry after this long."""

    kind: LimitKind
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class NotCounted:
    """The shared store does not answer, and the operator accepts no requests that it has not counted."""

    retry_after_s: float


QuotaAnswer = Lease | OverLimit | NotCounted


class QuotaSettlement(Protocol):
    """Takes back the leases of requests that ended."""

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """End a lease; `used_tokens` is None where the count is unknown. Must not block."""


class Quotas(QuotaSettlement, Protocol):
    """Counts requests against their keys' limits."""

    async def take(self, key_id: str, limits: Limits, tokens: int) -> QuotaAnswer:
        """Count one request. If this is cancelled, whatever it took is given back."""


class Embedder(Protocol):
    """Turns a text into a vector that is close to those of similar texts.

    `space` names the model: vectors of two spaces are never compared.
    """

    @property
    def space(self) -> str:
        """The model that the vectors come from; letters, digits and hyphens."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector holds; known after `start`."""

    async def start(self) -> None:
        """Prepare; raises EmbedderUnreachable, or ConfigError for what can never work."""

    async def embed(self, text: str) -> Vector:
        """The text's vector; raises EmbedderUnreachable. The caller sets the deadline."""

    async def close(self) -> None:
        """Release all resources."""


class AnswerStore(Protocol):
    """Keeps answers until they expire. Every method may raise StoreUnreachable; the caller sets deadlines.

    Scopes are isolated: no method returns an answer of another scope.
    """

    async def start(self, space: str, dimensions: int | None) -> None:
        """Prepare for vectors of this space; without `dimensions`, for exact answers alone."""

    async def exact(self, key: str, scope: str) -> StoredAnswer | None:
        """The answer to an identical request, without its vector."""

    async def nearest(self, scope: str, vector: Vector, count: int) -> list[Neighbour]:
        """The scope's nearest answers that have a vector, nearest first, without their vectors."""

    async def put(self, answer: StoredAnswer) -> None:
        """Keep an answer until it expires; it replaces one with the same key."""

    async def purge(self, what: Purge) -> int:
        """Delete answers; returns how many."""

    async def size(self) -> int:
        """How many answers are kept."""

    async def teach(self, lesson: bytes) -> None:
        """Store a lesson for every gateway that shares this store."""

    async def lessons(self, after: str) -> tuple[str, Sequence[bytes]]:
        """The next lessons after a cursor (`""`: from the oldest), oldest first, and the new cursor.

        All lessons have been read when the cursor no longer changes.
        """

    async def close(self) -> None:
        """Release all resources."""
