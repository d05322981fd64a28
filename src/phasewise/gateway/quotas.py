"""Counts requests against their keys' limits: in this process, or together with other gateways."""

from __future__ import annotations

from phasewise.model.limits import Lease, Limits, QuotaAnswer


class NoQuotas:
    """Counts nothing; for a gateway without limits."""

    async def take(self, key_id: str, limits: Limits, tokens: int) -> QuotaAnswer:
        """Let everything through."""
        del limits
        return Lease("", key_id, tokens, shared=False)

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """Nothing was counted."""
