"""Counts keys' limits in Redis, for all gateways together: one script, sent for many requests at once.

When to send what, and what to do while Redis does not answer, is gateway/shared_quotas.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import Any

from phasewise.adapters.fair_deadline import fair_deadline
from phasewise.adapters.redis_connection import redis_connections
from phasewise.errors import StoreUnreachable

_SCRIPT = resources.files(__package__).joinpath("redis_quotas.lua").read_text(encoding="utf-8")
_SCRIPT_SHA = sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
_CLOSES_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Take:
    """Count a request; costs as state/quota_book.py has them, 0 places for any number."""

    key_id: str
    lease_id: str
    request_cost_us: int
    token_cost_us: int
    places: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Give a request's place back, and add to what it was charged."""

    key_id: str
    lease_id: str
    request_correction_us: int
    token_correction_us: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Say that these requests are still under way."""

    key_id: str
    lease_ids: tuple[str, ...]


Operation = Take | Settle | Renew
_Command = tuple[str | int, ...]
_LOAD_SCRIPT: _Command = ("SCRIPT LOAD", _SCRIPT)
Waits = tuple[int, int, bool]
"""What came of Take: the waits for requests and for tokens in microseconds, and whether no place is free."""


class RedisQuotas:
    """The limits' store. Nothing is contacted before the first use, and the URL is never shown."""

    def __init__(self, url: str, key_prefix: str, lease_s: float) -> None:
        # One connection and no pool: what is asked is answered in order, and the pool's care for every
        # command costs more than the commands do.
        self._connection = redis_connections(url, "gateway.redis")()
        self._key_prefix = key_prefix
        self._lease_ms = round(lease_s * 1000)

    async def perform(self, operations: Sequence[Operation], deadline_s: float) -> list[Waits | None]:
        """Perform all, in this order, within the deadline; raises StoreUnreachable.

        The answer to Take is its waits, to the others None. After a failure it is not known what was done.
        """
        try:
            async with fair_deadline(deadline_s):
                replies = await self._replies([self._command(operation) for operation in operations])
        except Exception as error:
            # Anything: who waits for an answer must get one, and clients of Redis fail in many ways.
            raise StoreUnreachable(f"Redis does not answer ({type(error).__name__})") from None
        if not operations:
            return []
        return [
            (reply[0], reply[1], bool(reply[2])) if isinstance(operation, Take) else None
            for operation, reply in zip(operations, replies, strict=True)
        ]

    async def close(self) -> None:
        """Let the connection go."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSES_WITHIN_S):
                await self._connection.disconnect()

    async def _replies(self, commands: list[_Command]) -> list[Any]:
        replies = await self._exchange(commands or [_LOAD_SCRIPT])
        missing = [index for index, reply in enumerate(replies) if _script_is_missing(reply)]
        if missing:
            # Redis is new, was restarted, or its scripts were flushed: these were not performed.
            _, *again = await self._exchange([_LOAD_SCRIPT, *(commands[index] for index in missing)])
            for index, reply in zip(missing, again, strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _exchange(self, commands: list[_Command]) -> list[Any]:
        """What Redis says to each; errors are among it, so that none is left to be read by another."""
        packed = self._connection.pack_commands(commands)
        await self._connection.send_packed_command(packed, check_health=False)
        return [await self._reply() for _ in commands]

    async def _reply(self) -> Any:  # noqa: ANN401 - whatever Redis says
        try:
            return await self._connection.read_response()
        except Exception as error:
            if not self._connection.is_connected:
                raise
            return error

    def _command(self, operation: Operation) -> _Command:
        # In braces: what a cluster chooses a node by, so that a key's three names are on the same one.
        root = f"{self._key_prefix}:{{{operation.key_id}}}:"
        script = ("EVALSHA", _SCRIPT_SHA, 3, root + "requests", root + "tokens", root + "leases")
        match operation:
            case Take(_, lease_id, request_cost, token_cost, places):
                return (*script, "take", request_cost, token_cost, places, self._lease_ms, lease_id)
            case Settle(_, lease_id, requests, tokens):
                return (*script, "settle", requests, tokens, lease_id)
            case Renew(_, lease_ids):
                return (*script, "renew", self._lease_ms, *lease_ids)


def _script_is_missing(reply: object) -> bool:
    return isinstance(reply, Exception) and type(reply).__name__ == "NoScriptError"
