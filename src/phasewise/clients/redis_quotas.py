"""Counts API keys' limits in Redis, shared by all gateways: one script, sent for many requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import Any

from phasewise.clients.event_loop import fair_deadline
from phasewise.clients.redis_connection import Command, SharedConnection, redis_connections
from phasewise.core.errors import StoreUnreachable

_SCRIPT = resources.files(__package__).joinpath("redis_quotas.lua").read_text(encoding="utf-8")
_SCRIPT_SHA = sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Take:
    """Count a request."""

    key_id: str
    lease_id: str
    request_cost_us: int
    token_cost_us: int
    slots: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Release a request's slot, and correct what it was charged."""

    key_id: str
    lease_id: str
    request_correction_us: int
    token_correction_us: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the leases of requests that are still running."""

    key_id: str
    lease_ids: tuple[str, ...]


Operation = Take | Settle | Renew
_LOAD_SCRIPT: Command = ("SCRIPT LOAD", _SCRIPT)
Waits = tuple[int, int, bool]
"""The reply to Take: the waits for requests and for tokens in microseconds, and whether no slot is free."""


class RedisQuotas:
    """The store of limits. It contacts nothing before the first use and never shows the URL."""

    def __init__(self, url: str, key_prefix: str, lease_s: float) -> None:
        self._connection = SharedConnection(redis_connections(url, "gateway.redis"))
        self._key_prefix = key_prefix
        self._lease_ms = round(lease_s * 1000)

    async def perform(self, operations: Sequence[Operation], deadline_s: float) -> list[Waits | None]:
        """Perform all, in this order, within the deadline; raises StoreUnreachable.

        The reply to Take is its waits, to the others None. After a failure it is unknown what was done.
        """
        try:
            async with fair_deadline(deadline_s):
                replies = await self._replies([self._command(operation) for operation in operations])
        except StoreUnreachable:
            raise
        except Exception as error:
            # Any error: a waiting caller must get a reply. The connection may still wait for Redis'.
            await self._connection.close()
            raise StoreUnreachable(f"Redis does not answer ({type(error).__name__})") from None
        if not operations:
            return []
        return [
            (reply[0], reply[1], bool(reply[2])) if isinstance(operation, Take) else None
            for operation, reply in zip(operations, replies, strict=True)
        ]

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _replies(self, commands: list[Command]) -> list[Any]:
        replies = await self._connection.ask_all(commands or [_LOAD_SCRIPT])
        missing = [index for index, reply in enumerate(replies) if type(reply).__name__ == "NoScriptError"]
        if missing:
            # Redis is new, was restarted, or its scripts were flushed: these were not performed.
            missed = [_LOAD_SCRIPT, *(commands[index] for index in missing)]
            _, *again = await self._connection.ask_all(missed)
            for index, reply in zip(missing, again, strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _command(self, operation: Operation) -> Command:
        # In braces: a cluster hashes only this part, so that a key's three names are on the same node.
        root = f"{self._key_prefix}:{{{operation.key_id}}}:"
        script = ("EVALSHA", _SCRIPT_SHA, 3, root + "requests", root + "tokens", root + "leases")
        match operation:
            case Take(_, lease_id, request_cost, token_cost, slots):
                return (*script, "take", request_cost, token_cost, slots, self._lease_ms, lease_id)
            case Settle(_, lease_id, requests, tokens):
                return (*script, "settle", requests, tokens, lease_id)
            case Renew(_, lease_ids):
                return (*script, "renew", self._lease_ms, *lease_ids)
