"""Connects to the configured Redis. Its address is never shown, as it may hold a password."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from phasewise.core.errors import ConfigError, StoreRejected, StoreUnreachable

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection


def redis_connections(url: str, setting: str) -> Callable[[], AbstractConnection]:
    """A factory of bare connections; nothing is contacted. `setting` names the url's key in the file.

    Raises ConfigError if the package is missing or the url is invalid.
    """
    try:
        connection, retry, backoff = map(
            import_module, ("redis.asyncio.connection", "redis.asyncio.retry", "redis.backoff")
        )
    except ImportError:
        raise ConfigError(
            f"{setting} is set, but the package redis is not installed",
            hint="pip install 'phasewise[redis]'",
        ) from None
    try:
        options = connection.parse_url(url)
        kind = options.pop("connection_class", connection.Connection)
        for of_pools in ("max_connections", "timeout"):
            options.pop(of_pools, None)
        # These override the address: no timeouts, because one deadline covers the whole batch; replies in
        # the form that every version of Redis and of the package knows; and no retries, because a request
        # that was counted before its reply got lost would be counted twice.
        options |= {
            "socket_timeout": None, "protocol": 2, "decode_responses": False,
            "retry": retry.Retry(backoff.NoBackoff(), 0),
        }  # fmt: skip
        kind(**options)
    except (ValueError, TypeError):
        # The cause is not shown: it may quote the address.
        raise ConfigError(
            f"{setting}.url is not an address of Redis",
            hint="accepted: redis://HOST:PORT/NUMBER, rediss:// for TLS, unix:///PATH",
        ) from None
    return partial(kind, **options)


# --- One connection to Redis that many tasks share: replies come in the order of the commands.
#
# A task that stops waiting does not take another one's reply.

Command = Sequence[str | bytes | int | float]
CONNECTS_WITHIN_S = 5.0
SILENT_S = 5.0
"""A Redis that leaves a command unanswered for this long is disconnected, and connected again."""
MOST_WAITING_BYTES = 64 * 2**20
"""Commands without a reply; more are rejected at once, so that a stalled Redis costs no memory."""
_BYTES_PER_ASKER = 1000


class SharedConnection:
    """The shared connection. The first command opens it, and the next one after it broke opens it again."""

    def __init__(self, make_connection: Callable[[], AbstractConnection]) -> None:
        self._make_connection = make_connection
        self._call: _OpenConnection | None = None

    async def ask(self, *command: str | bytes | int | float) -> Any:  # noqa: ANN401 - whatever Redis says
        """The reply to one command; raises StoreUnreachable, and StoreRejected if Redis rejects it."""
        (reply,) = await self.ask_all([command])
        if isinstance(reply, Exception):
            raise rejection(reply)
        return reply

    async def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to commands sent together; commands that Redis rejected have errors as replies.

        Raises StoreUnreachable, after which it is unknown what Redis executed.
        """
        return await self._open_call().ask(commands) if commands else []

    async def close(self) -> None:
        """Close the connection; waiting commands fail."""
        if self._call is not None:
            await self._call.close()
            self._call = None

    def _open_call(self) -> _OpenConnection:
        call = self._call
        if call is not None and call.is_silent():
            call.give_up("silent")
        if call is None or call.is_over:
            call = self._call = _OpenConnection(self._make_connection())
        return call


async def published(
    make_connection: Callable[[], AbstractConnection], channel: str, silent_s: float
) -> AsyncIterator[bytes]:
    """What is published there from now on, until the connection breaks or nothing comes for so long."""
    connection = make_connection()
    try:
        await connection.send_command("SUBSCRIBE", channel)
        while True:
            async with asyncio.timeout(silent_s):
                _, _, message = await connection.read_response()
            if isinstance(message, bytes):  # not the reply to the command
                yield message
    finally:
        await connection.disconnect(nowait=True)


def rejection(reply: Exception) -> StoreRejected:
    """The error for a command that Redis rejected, without Redis' message, which may repeat the command."""
    return StoreRejected(f"Redis rejects a command ({type(reply).__name__})")


@dataclass(slots=True)
class _Command:
    packed: list[bytes]
    size_bytes: int
    replies_due: int
    asked_s: float
    done: asyncio.Future[list[Any]]
    replies: list[Any] = field(default_factory=list)


class _OpenConnection:
    """One connection, from opening to closing."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._unsent: list[_Command] = []
        self._unanswered: deque[_Command] = deque()
        self._waiting_bytes = 0
        self._more = asyncio.Event()
        self.is_over = False
        self._task = asyncio.create_task(self._run())

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        packed = self._connection.pack_commands(commands)
        size_bytes = sum(map(len, packed)) + _BYTES_PER_ASKER
        if self._waiting_bytes + size_bytes > MOST_WAITING_BYTES:
            raise StoreUnreachable("Redis is too slow: too many commands wait for a reply")
        asked = _Command(packed, size_bytes, len(commands), self._loop.time(), self._loop.create_future())
        self._waiting_bytes += size_bytes
        self._unsent.append(asked)
        self._more.set()
        return await asked.done

    def is_silent(self) -> bool:
        return bool(self._unanswered) and self._loop.time() - self._unanswered[0].asked_s > SILENT_S

    def give_up(self, why: str) -> None:
        self._end(why)
        self._task.cancel()

    def _end(self, why: str) -> None:
        """Fail all waiting commands; later ones need a new connection."""
        self.is_over = True
        waiting = [*self._unanswered, *self._unsent]
        self._unanswered.clear()
        self._unsent.clear()
        for asked in waiting:
            if not asked.done.done():
                asked.done.set_exception(StoreUnreachable(f"Redis does not answer ({why})"))

    async def close(self) -> None:
        self.give_up("closed")
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(CONNECTS_WITHIN_S):
                await self._connection.connect()  # type: ignore[no-untyped-call]
            async with asyncio.TaskGroup() as both:
                both.create_task(self._send())
                both.create_task(self._receive())
        except Exception as error:
            # Any error: a waiting command must get a reply, and Redis clients fail in many ways.
            self._end(_name(error))
        finally:
            with contextlib.suppress(Exception):
                await self._connection.disconnect(nowait=True)

    async def _send(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            # Everything queued is sent together, by a separate task: if a caller sent it and was cancelled
            # during a blocked write, it would break the connection for all others.
            batch, self._unsent = self._unsent, []
            pieces = []
            for asked in batch:
                if asked.done.done():
                    self._waiting_bytes -= asked.size_bytes
                    continue
                pieces += asked.packed
                asked.packed = []
                self._unanswered.append(asked)
            await self._connection.send_packed_command(pieces, check_health=False)

    async def _receive(self) -> None:
        while True:
            try:
                reply = await self._connection.read_response()
            except Exception as error:
                # An error that Redis says is a reply too.
                if not self._connection.is_connected:
                    raise
                reply = error
            asked = self._unanswered[0]
            asked.replies.append(reply)
            if len(asked.replies) == asked.replies_due:
                self._unanswered.popleft()
                self._waiting_bytes -= asked.size_bytes
                if not asked.done.done():
                    asked.done.set_result(asked.replies)


def _name(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
