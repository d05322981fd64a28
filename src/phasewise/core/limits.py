"""What a key may use, and the outcome of asking for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one key; None is no bound.

    Rates are buckets that hold a minute's worth and fill continuously: a key that was idle may use a
    minute's worth at once.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether there is nothing to count."""
        return self == NO_LIMITS


NO_LIMITS = Limits()


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
