"""The client's side of one request over raw ASGI: reading its body, answering it, noticing that it left.

What is answered, and with which status, is decided by others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from phasewise.errors import RefusalKind, RequestRefused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

BODY_LIMIT_BYTES = 32 * 1024 * 1024
DROP = "phasewise.drop"
"""The extension of ASGI by which our server lets us cut a connection, with what was not yet sent."""
WAITED_S = 1e-3
"""A send that takes no longer has waited for nobody: it wrote, which takes some microseconds."""


class ClientLeft(Exception):
    """The client went away before its request was complete. Caught within this package."""


class Client:
    """One request's client.

    While it is watched, its leaving cancels the task that serves it; `gone` then tells that cancellation from
    any other. `reading_since_s` and `sending_since_s` are set while we wait for the client, where patience.py
    sees them; `stalled` holds once a wait for it to read was given up. `blocked_s` adds up such waits, which
    only a stream has: an answer that is sent at once waits for nobody.
    """

    __slots__ = (
        "_answered",
        "_drop",
        "_reader",
        "_receive",
        "_too_late",
        "_watcher",
        "blocked_s",
        "gone",
        "reading_since_s",
        "send",
        "sending_since_s",
        "stalled",
        "started",
        "streaming",
    )

    def __init__(self, receive: Receive, send: Send, drop: Callable[[], None] | None = None) -> None:
        self._receive = receive
        self.send = send
        self._drop = drop
        self.started = False
        self.gone = False
        self.stalled = False
        self.streaming = False
        self.blocked_s = 0.0
        self.reading_since_s: float | None = None
        self.sending_since_s: float | None = None
        self._answered = False
        self._too_late = False
        self._reader: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def read_body(self, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
        """The whole body of the request."""
        self._reader = asyncio.current_task()
        self.reading_since_s = time.monotonic()
        try:
            return await self._read_body(limit_bytes)
        except asyncio.CancelledError:
            if not self._too_late or self._reader is None:
                raise
            self._reader.uncancel()
            raise RequestRefused(
                RefusalKind.BODY_TIMEOUT, "the request's body did not come in time", hint="send it at once"
            ) from None
        finally:
            self.reading_since_s = None

    def stop_reading(self) -> None:
        """The body has taken too long: whoever reads it is told so."""
        if self._reader is not None and not self._too_late:
            self._too_late = True
            self._reader.cancel()

    def give_up(self) -> None:
        """The client does not take what it is sent: cut its connection. It then counts as having left."""
        if self._drop is not None and not self.stalled:
            self.stalled = True
            self._drop()

    async def _read_body(self, limit_bytes: int) -> bytes:
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
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_part(self, data: bytes) -> None:
        """Send some bytes of an answer that was started."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, last: bytes = b"") -> None:
        """Send the last bytes of an answer that was started."""
        self._answered = True
        await self._send({"type": "http.response.body", "body": last})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        self._answered = True
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.finish(body)

    def blocked_until(self, now_s: float) -> float | None:
        """How long its stream has waited for the client by now, None for an answer that is no stream."""
        if not self.streaming:
            return None
        under_way_s = 0.0 if self.sending_since_s is None else now_s - self.sending_since_s
        return self.blocked_s + (under_way_s if under_way_s > WAITED_S else 0.0)

    async def _send(self, message: Message) -> None:
        since_s = self.sending_since_s = time.monotonic()
        await self.send(message)
        if (waited_s := time.monotonic() - since_s) > WAITED_S:
            self.blocked_s += waited_s
        self.sending_since_s = None


def client_of(scope: Scope, receive: Receive, send: Send) -> Client:
    """The client behind a connection's request."""
    drop = (scope.get("extensions") or {}).get(DROP)
    return Client(receive, send, None if drop is None else drop["now"])


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
