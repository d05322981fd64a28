"""Counts requests against their keys' limits in this process alone, by its own clock."""

from __future__ import annotations

import time

from phasewise.model.limits import Lease, Limits, OverLimit
from phasewise.state.quota_book import QuotaBook


class ProcessQuotas:
    """One book for one process. Fulfils the port Quotas, and never has to wait for anything."""

    degraded = False

    def __init__(self) -> None:
        self._book = QuotaBook()

    async def take(self, key_id: str, limits: Limits, tokens: int) -> Lease | OverLimit:
        """Count one request."""
        return self._book.take(key_id, limits, tokens, time.monotonic())

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """The request has ended."""
        self._book.settle(lease, used_tokens, time.monotonic())

    async def start(self) -> None:
        """Nothing to reach."""

    async def stop(self) -> None:
        """Nothing to let go."""
