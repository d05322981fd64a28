"""The client's side of one request over raw ASGI: reading its body, answering it, noticing that it left.

What is answered, and with which status, is decided by others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from phasewise.errors import RefusalKind, RequestRefused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

BODY_LIMIT_BYTES = 32 * 1024 * 1024


class ClientLeft(Exception):
    """The client went away before its request was complete. Caught within this package."""


class Client:
    """One request's client.

    While it is watched, its leaving cancels the task that serves it; `gone` then tells that cancellation from
    any other.
    """

    __slots__ = ("_answered", "_receive", "_watcher", "gone", "send", "started")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self.send = send
        self.started = False
        self.gone = False
        self._answered = False
        self._watcher: asyncio.Task[None] | None = None

    async def read_body(self, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
        """The whole body of the request."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > limit_bytes:
                raise _too_large(limit_bytes)
            return body
        return await self._read_parts(message, limit_bytes)

    async def _read_parts(self, message: Message, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            if message["type"] != "http.request":
                raise ClientLeft
            part = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self._receive()

    def watch(self) -> None:
        """From now on, cancel the current task when the client leaves. The body must have been read."""
        serving = asyncio.current_task()
        if serving is None:
            raise RuntimeError("only a task can be told that its client left")
        self._watcher = asyncio.get_running_loop().create_task(self._await_leaving(serving))

    async def _await_leaving(self, serving: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # The server says "disconnect" after a complete answer too; by then there is nothing left to stop.
        if not self._answered:
            self.gone = True
            serving.cancel()

    def unwatch(self) -> None:
        """Stop watching; after a complete answer the watcher has ended by itself."""
        if self._watcher is not None and not self._answered:
            self._watcher.cancel()

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the answer."""
        self.started = True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def finish(self, last: bytes = b"") -> None:
        """Send the last bytes of an answer that was started."""
        self._answered = True
        await self.send({"type": "http.response.body", "body": last})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        self._answered = True
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that name (in lower case)."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def _too_large(limit_bytes: int) -> RequestRefused:
    return RequestRefused(
        RefusalKind.TOO_LARGE, f"the request's body is larger than {limit_bytes // 2**20} MiB"
    )
