"""The client's side of one request: reading its body, answering it, noticing that it left.

At once where our server lets us (connection.py), which it does wherever something is generated. Over plain
ASGI for HEAD and HTTP/1.0, and for the stand-ins of levers/, whose server is uvicorn's own. What is answered,
and with which status, is decided by others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from phasewise.errors import RefusalKind, RequestRefused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

BODY_LIMIT_BYTES = 32 * 1024 * 1024
DROP = "phasewise.drop"
"""The extension of ASGI by which our server lets us cut a connection, with what was not yet sent."""
DIRECT = "phasewise.direct"
"""The extension by which our server lets us answer at once: a `Direct`."""
WAITED_S = 1e-3
"""A send that takes no longer has waited for nobody: it wrote, which takes some microseconds."""


class Listener(Protocol):
    """Who is told what becomes of a client."""

    def has_room(self) -> None:
        """The client takes more again."""

    def has_left(self) -> None:
        """The client went away before its answer was complete."""


class Direct(Protocol):
    """An answer whose pieces are written when they are said; see connection.py."""

    listener: Listener | None
    paused: bool
    """Whether the client takes nothing at the moment."""

    @property
    def left(self) -> bool:
        """Whether the client went away before its answer was complete."""

    def take_body(self) -> bytes | None:
        """The request's body if all of it is here."""

    def keep_reading(self) -> None:
        """See to it that the client's leaving is noticed."""

    def start(self, status: int, headers: Headers) -> None:
        """Write the head of an answer."""

    def write(self, data: bytes) -> None:
        """Write some bytes of an answer that was started."""

    def write_chunks(self, chunks: bytes) -> None:
        """Write chunks that have their sizes before them, of an answer in chunks."""

    def finish(self, last: bytes) -> None:
        """Write the last bytes of an answer that was started."""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a whole answer."""

    def drop(self) -> None:
        """Cut the connection."""


class ClientLeft(Exception):
    """The client went away before its request was complete. Caught within this package."""


class Client:
    """One request's client.

    While it is watched, its leaving cancels the task that serves it; `gone` then tells that cancellation from
    any other. `reading_since_s` and `sending_since_s` are set while we wait for the client, where patience.py
    sees them; `stalled` holds once a wait for it to read was given up. `blocked_s` adds up such waits, which
    only a stream has: an answer that is sent at once waits for nobody. `direct` is None where the server
    speaks plain ASGI. `on_room` is called when a client that took nothing takes more, before others go on.
    `followed` tells whether others wait for the same answer, which then goes on without this client.
    """

    __slots__ = (
        "_answered",
        "_drop",
        "_reader",
        "_receive",
        "_room",
        "_serving",
        "_too_late",
        "_watcher",
        "blocked_s",
        "direct",
        "followed",
        "gone",
        "on_room",
        "reading_since_s",
        "send",
        "sending_since_s",
        "stalled",
        "started",
        "streaming",
    )

    def __init__(
        self,
        receive: Receive,
        send: Send,
        drop: Callable[[], None] | None = None,
        direct: Direct | None = None,
    ) -> None:
        self._receive = receive
        self.send = send
        self._drop = drop
        self.direct = direct
        self.started = False
        self.gone = False
        self.stalled = False
        self.streaming = False
        self.blocked_s = 0.0
        self.reading_since_s: float | None = None
        self.sending_since_s: float | None = None
        self.on_room: Callable[[], None] | None = None
        self.followed: Callable[[], bool] | None = None
        self._answered = False
        self._too_late = False
        self._reader: asyncio.Task[Any] | None = None
        self._serving: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None

    # --- its request ------------------------------------------------------------------------------------

    async def read_body(self, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
        """The whole body of the request."""
        if self.direct is not None and (body := self.direct.take_body()) is not None:
            if len(body) > limit_bytes:
                raise _too_large(limit_bytes)
            return body
        self._reader = asyncio.current_task()
        self.reading_since_s = time.monotonic()
        try:
            return await self._read_parts(limit_bytes)
        except asyncio.CancelledError:
            if not self._too_late or self._reader is None:
                raise
            self._reader.uncancel()
            raise RequestRefused(
                RefusalKind.BODY_TIMEOUT, "the request's body did not come in time", hint="send it at once"
            ) from None
        finally:
            self.reading_since_s = None
            self._reader = None

    def stop_reading(self) -> None:
        """The body has taken too long: whoever reads it is told so."""
        if self._reader is not None and not self._too_late:
            self._too_late = True
            self._reader.cancel()

    async def _read_parts(self, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientLeft
            part = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    # --- its leaving ------------------------------------------------------------------------------------

    @property
    def left(self) -> bool:
        """Whether it is known to have gone before its answer was complete, watched or not."""
        return self.direct is not None and self.direct.left

    @property
    def is_followed(self) -> bool:
        """Whether others wait for its answer now."""
        return self.followed is not None and self.followed()

    def watch(self) -> None:
        """From now on, cancel the current task when the client leaves. The body must have been read."""
        self._serving = asyncio.current_task()
        if self._serving is None:
            raise RuntimeError("only a task can be told that its client left")
        if self.direct is None:
            self._watcher = asyncio.get_running_loop().create_task(self._await_leaving())
            return
        self.direct.keep_reading()
        if self.direct.left:
            self.has_left()

    async def _await_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_left()

    def unwatch(self) -> None:
        """Stop watching; after a complete answer the watcher has ended by itself."""
        self._serving = None
        if self._watcher is not None and not self._answered:
            self._watcher.cancel()

    def has_left(self) -> None:
        """The client went away: there is nothing left to wait for."""
        # A server may say so after a complete answer too; by then there is nothing left to stop.
        if self._serving is not None and not self._answered:
            if not self.is_followed:
                self.gone = True
                self._serving.cancel()
            elif self.on_room is not None:
                # What is held for this client nobody takes any more.
                self.on_room()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def give_up(self) -> None:
        """The client does not take what it is sent: cut its connection. It then counts as having left."""
        drop = self._drop if self.direct is None else self.direct.drop
        if drop is not None and not self.stalled:
            self.stalled = True
            drop()

    # --- its answer -------------------------------------------------------------------------------------

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the answer."""
        self.started = True
        if self.direct is not None:
            self.direct.start(status, headers)
        else:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_part(self, data: bytes) -> None:
        """Send some bytes of an answer that was started."""
        if self.direct is not None:
            await self.wait_for_room()
            self.direct.write(data)
        else:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, last: bytes = b"") -> None:
        """Send the last bytes of an answer that was started."""
        self._answered = True
        if self.direct is not None:
            await self.wait_for_room()
            self.direct.finish(last)
        else:
            await self._send({"type": "http.response.body", "body": last})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        self._answered = self.started = True
        if self.direct is not None:
            # For the answers before it, if the client asked ahead and did not read: they would pile up.
            if self.direct.paused:
                await self.wait_for_room()
            self.direct.respond(status, headers, body)
            return
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.finish(body)

    async def wait_for_room(self) -> None:
        """Wait while the client takes nothing."""
        if self.direct is None or not self.direct.paused:
            return
        if self.sending_since_s is None:
            self.sending_since_s = time.monotonic()
        self._room = asyncio.get_running_loop().create_future()
        try:
            await self._room
        finally:
            self._room = None
        self.waited()

    def has_room(self) -> None:
        """The client takes more again."""
        if self.on_room is not None:
            self.on_room()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def waited(self) -> None:
        """A wait for the client is over, if one was under way."""
        since_s, self.sending_since_s = self.sending_since_s, None
        if since_s is not None and (waited_s := time.monotonic() - since_s) > WAITED_S:
            self.blocked_s += waited_s

    def blocked_until(self, now_s: float) -> float | None:
        """How long its stream has waited for the client by now, None for an answer that is no stream."""
        if not self.streaming:
            return None
        under_way_s = 0.0 if self.sending_since_s is None else now_s - self.sending_since_s
        return self.blocked_s + (under_way_s if under_way_s > WAITED_S else 0.0)

    async def _send(self, message: Message) -> None:
        self.sending_since_s = time.monotonic()
        await self.send(message)
        self.waited()


def client_of(scope: Scope, receive: Receive, send: Send) -> Client:
    """The client behind a connection's request."""
    extensions = scope.get("extensions") or {}
    # Taken out: what the scope holds, holds the scope, and only the garbage collector could tell them apart.
    direct: Direct | None = extensions.pop(DIRECT, None)
    if direct is None:
        drop = extensions.get(DROP)
        return Client(receive, send, None if drop is None else drop["now"])
    client = Client(receive, send, direct=direct)
    direct.listener = client
    return client


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The headers by their names in lower case; of several with one name, the first."""
    return dict(reversed(scope["headers"]))


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
