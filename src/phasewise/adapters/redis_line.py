"""One connection to Redis that many ask over at the same time: replies come in the order of the questions.

What is asked, and for how long each asker waits, is theirs; one that stops waiting takes nobody's reply.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from phasewise.errors import StoreRefused, StoreUnreachable

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

Command = Sequence[str | bytes | int | float]
CONNECTS_WITHIN_S = 5.0
SILENT_S = 5.0
"""A Redis that has not said anything for so long to one who asked is given up, and called anew."""
MOST_WAITING_BYTES = 64 * 2**20
"""Of questions without a reply; more are refused at once, so that a Redis that hangs costs no memory."""
_BYTES_PER_ASKER = 1000


class RedisLine:
    """The line. It is made when somebody asks, and again by the next who asks after it broke."""

    def __init__(self, make_connection: Callable[[], AbstractConnection]) -> None:
        self._make_connection = make_connection
        self._call: _Call | None = None

    async def ask(self, *command: str | bytes | int | float) -> Any:  # noqa: ANN401 - whatever Redis says
        """The reply to one command; raises StoreUnreachable, and StoreRefused if Redis refuses it."""
        (reply,) = await self.ask_all([command])
        if isinstance(reply, Exception):
            raise refusal(reply)
        return reply

    async def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to commands sent together, what Redis refused as errors among them.

        Raises StoreUnreachable, after which it is not known what was done.
        """
        return await self._open_call().ask(commands) if commands else []

    async def close(self) -> None:
        """Let the connection go; whoever still waits is told so."""
        if self._call is not None:
            await self._call.close()
            self._call = None

    def _open_call(self) -> _Call:
        call = self._call
        if call is not None and call.is_silent():
            call.give_up("silent")
        if call is None or call.is_over:
            call = self._call = _Call(self._make_connection())
        return call


def refusal(reply: Exception) -> StoreRefused:
    """What to raise for a command that Redis refused: without its words, which may repeat what was asked."""
    return StoreRefused(f"Redis refuses a command ({type(reply).__name__})")


@dataclass(slots=True)
class _Asked:
    packed: list[bytes]
    size_bytes: int
    replies_due: int
    asked_s: float
    done: asyncio.Future[list[Any]]
    replies: list[Any] = field(default_factory=list)


class _Call:
    """One connection, from being made to its end."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._unsent: list[_Asked] = []
        self._unanswered: deque[_Asked] = deque()
        self._waiting_bytes = 0
        self._more = asyncio.Event()
        self.is_over = False
        self._task = asyncio.create_task(self._run())

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        packed = self._connection.pack_commands(commands)
        size_bytes = sum(map(len, packed)) + _BYTES_PER_ASKER
        if self._waiting_bytes + size_bytes > MOST_WAITING_BYTES:
            raise StoreUnreachable("Redis does not keep up with what it is asked")
        asked = _Asked(packed, size_bytes, len(commands), self._loop.time(), self._loop.create_future())
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
        """All who wait are told; those who ask from now on need another call."""
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
            # Anything: who waits for a reply must get one, and clients of Redis fail in many ways.
            self._end(_name(error))
        finally:
            with contextlib.suppress(Exception):
                await self._connection.disconnect(nowait=True)

    async def _send(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            # All that has gathered goes out together, and in a task of its own: an asker that is cancelled
            # while Redis takes nothing in would otherwise break the line for all others.
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
            reply = await self._reply()
            asked = self._unanswered[0]
            asked.replies.append(reply)
            if len(asked.replies) == asked.replies_due:
                self._unanswered.popleft()
                self._waiting_bytes -= asked.size_bytes
                if not asked.done.done():
                    asked.done.set_result(asked.replies)

    async def _reply(self) -> Any:  # noqa: ANN401 - whatever Redis says
        try:
            return await self._connection.read_response()
        except Exception as error:
            if not self._connection.is_connected:
                raise
            return error


def _name(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
