"""The protocols that adapters and stores fulfil, so that callers name what they need and not who does it."""

from __future__ import annotations

from typing import Protocol

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
