"""Counts keys' limits over all processes of a gateway, in the memory that they share."""

from __future__ import annotations

import time
from dataclasses import dataclass

from phasewise.core.limits import Lease, Limits, OverLimit
from phasewise.gateway.api.quotas import ProcessQuotas
from phasewise.gateway.processes.board import Board, KeyRow
from phasewise.scheduling.quota_book import Account, Bucket, microseconds


@dataclass(frozen=True, slots=True)
class _Open:
    lease: Lease
    limits: Limits


class BoardQuotas(ProcessQuotas):
    """One book for all processes. A key for which it has no row is counted by each process alone."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board
        self._under_way: dict[str, _Open] = {}
        self._next_number = 0

    async def take(self, key_id: str, limits: Limits, tokens: int) -> Lease | OverLimit:
        """Count one request."""
        with self._board.key_row(key_id) as row:
            if row is None:
                return await super().take(key_id, limits, tokens)
            account = _account(row)
            rejection = account.take(limits, tokens, microseconds(time.monotonic()))
            if rejection is not None:
                return rejection
            _keep(row, account, 1)
        lease = Lease(f"board-{self._next_number}", key_id, tokens, shared=False)
        self._next_number += 1
        self._under_way[lease.lease_id] = _Open(lease, limits)
        return lease

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """The request has ended."""
        opened = self._under_way.pop(lease.lease_id, None)
        if opened is None:
            super().settle(lease, used_tokens)
            return
        with self._board.key_row(lease.key_id) as row:
            if row is not None:
                account = _account(row)
                account.settle(opened.limits, lease.tokens, used_tokens, microseconds(time.monotonic()))
                _keep(row, account, -1)


def _account(row: KeyRow) -> Account:
    requests_us, tokens_us = row.full_at_us
    return Account(Bucket(requests_us), Bucket(tokens_us), row.slots)


def _keep(row: KeyRow, account: Account, slots: int) -> None:
    row.full_at_us = account.requests.full_at_us, account.tokens.full_at_us
    row.add_slot(slots)
