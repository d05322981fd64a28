"""The client's side of one request: read its body, answer it, notice that it left or is too slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.gateway.guard import ErrorGuard

Scope = MutableMapping[str, Any]
"""A request's head: its method, path, query_string and headers, named as in ASGI, and `is_local`: whether it
came over the process's own admin socket."""
Headers = Sequence[tuple[bytes, bytes]]

Grow = Callable[[int], Awaitable[None]]
"""Is given the size of each part of a body before it is kept, and may wait."""

BODY_LIMIT_BYTES = 32 * 1024 * 1024
WAITED_S = 1e-3
"""A send that takes no longer did not wait for the client."""


class Listener(Protocol):
    """Receives the events of a client."""

    def is_writable(self) -> None:
        """The client takes more again."""

    def has_left(self) -> None:
        """The client went away before its answer was complete."""


class Direct(Protocol):
    """A request whose body is read, and whose answer's pieces are written at once."""

    listener: Listener | None
    paused: bool
    """Whether the client takes no data now."""
    may_be_chunked: bool
    """Whether an answer without a length is written in chunks."""

    @property
    def left(self) -> bool:
        """Whether the client went away before its answer was complete."""

    def take_body(self) -> bytes | None:
        """The request's body if all of it is here."""

    async def read_part(self) -> bytes | None:
        """The body's next bytes; empty at its end, None if the client has left."""

    def keep_reading(self) -> None:
        """Keep reading, so that a disconnect is noticed."""

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

    While it is watched, its disconnect cancels the task that serves it; `gone` distinguishes that
    cancellation from others. `reading_since_s` and `sending_since_s` are set while the gateway waits for the
    client, for ClientWatch; `stalled` is set once a wait for it to read was given up. `blocked_s` sums up
    such waits, which only streams have. `direct` writes its answer. `on_writable` is called when a paused
    client takes data again, before other listeners. `followed` says whether other requests share the answer,
    which then goes on without this client. `is_anthropic`: it speaks Anthropic's protocol, and gets errors in
    that shape.
    """

    __slots__ = (
        "_answered",
        "_reader",
        "_serving",
        "_too_late",
        "_writable",
        "blocked_s",
        "direct",
        "followed",
        "gone",
        "is_anthropic",
        "on_writable",
        "reading_since_s",
        "sending_since_s",
        "stalled",
        "started",
        "streaming",
    )

    def __init__(self, direct: Direct) -> None:
        self.direct = direct
        direct.listener = self
        self.started = False
        self.gone = False
        self.stalled = False
        self.streaming = False
        self.is_anthropic = False
        self.blocked_s = 0.0
        self.reading_since_s: float | None = None
        self.sending_since_s: float | None = None
        self.on_writable: Callable[[], None] | None = None
        self.followed: Callable[[], bool] | None = None
        self._answered = False
        self._too_late = False
        self._reader: asyncio.Task[Any] | None = None
        self._serving: asyncio.Task[Any] | None = None
        self._writable: asyncio.Future[None] | None = None

    # --- its request ------------------------------------------------------------------------------------

    async def read_body(self, limit_bytes: int = BODY_LIMIT_BYTES, grow: Grow | None = None) -> bytes:
        """The whole body of the request. `grow` is called with the size of each part before it is kept."""
        if (body := self.direct.take_body()) is not None:
            if len(body) > limit_bytes:
                raise too_large(limit_bytes)
            return body
        self._reader = asyncio.current_task()
        self.reading_since_s = time.monotonic()
        try:
            return await self._read_parts(limit_bytes, grow)
        except asyncio.CancelledError:
            if not self._too_late or self._reader is None:
                raise
            self._reader.uncancel()
            raise RequestRejected(
                RejectionKind.BODY_TIMEOUT, "the request's body did not come in time", hint="send it at once"
            ) from None
        finally:
            self.reading_since_s = None
            self._reader = None

    def stop_reading(self) -> None:
        """The body has taken too long: cancel its reader."""
        if self._reader is not None and not self._too_late:
            self._too_late = True
            self._reader.cancel()

    async def _read_parts(self, limit_bytes: int, grow: Grow | None) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := await self.direct.read_part():
            size += len(part)
            if size > limit_bytes:
                raise too_large(limit_bytes)
            if grow is not None:
                # While it waits for memory, nothing is asked of the client.
                since_s, self.reading_since_s = self.reading_since_s, None
                await grow(len(part))
                self.reading_since_s = since_s
            parts.append(part)
        if part is None:
            raise ClientLeft
        return b"".join(parts)

    # --- its leaving ------------------------------------------------------------------------------------

    @property
    def left(self) -> bool:
        """Whether it disconnected before its answer was complete, watched or not."""
        return self.direct.left

    @property
    def is_followed(self) -> bool:
        """Whether other requests share its answer now."""
        return self.followed is not None and self.followed()

    def watch(self) -> None:
        """From now on, cancel the current task when the client leaves."""
        self._serving = asyncio.current_task()
        if self._serving is None:
            raise RuntimeError("watch() must be called in a task")
        self.direct.keep_reading()
        if self.direct.left:
            self.has_left()

    def unwatch(self) -> None:
        """Stop watching."""
        self._serving = None

    def has_left(self) -> None:
        """The client went away."""
        # A server may report this after a complete answer too; then there is nothing to stop.
        if self._serving is not None and not self._answered:
            if not self.is_followed:
                self.gone = True
                self._serving.cancel()
            elif self.on_writable is not None:
                # The client no longer takes what is held for it.
                self.on_writable()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def give_up(self) -> None:
        """The client does not read: close its connection. It then counts as having left."""
        if not self.stalled:
            self.stalled = True
            self.direct.drop()

    # --- its answer -------------------------------------------------------------------------------------

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the answer."""
        self.started = True
        self.direct.start(status, headers)

    async def send_part(self, data: bytes) -> None:
        """Send some bytes of an answer that was started."""
        await self.wait_until_writable()
        self.direct.write(data)

    async def finish(self, last: bytes = b"") -> None:
        """Send the last bytes of an answer that was started."""
        self._answered = True
        await self.wait_until_writable()
        self.direct.finish(last)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        self._answered = self.started = True
        # Wait for earlier answers if the client pipelines requests and does not read: they would pile up.
        if self.direct.paused:
            await self.wait_until_writable()
        self.direct.respond(status, headers, body)

    async def wait_until_writable(self) -> None:
        """Wait while the client takes no data."""
        if not self.direct.paused:
            return
        if self.sending_since_s is None:
            self.sending_since_s = time.monotonic()
        self._writable = asyncio.get_running_loop().create_future()
        try:
            await self._writable
        finally:
            self._writable = None
        self.waited()

    def is_writable(self) -> None:
        """The client takes more again."""
        if self.on_writable is not None:
            self.on_writable()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def waited(self) -> None:
        """A wait for the client is over, if one was under way."""
        since_s, self.sending_since_s = self.sending_since_s, None
        if since_s is not None and (waited_s := time.monotonic() - since_s) > WAITED_S:
            self.blocked_s += waited_s

    def blocked_until(self, now_s: float) -> float | None:
        """How long its stream has waited for the client by now; None without a stream."""
        if not self.streaming:
            return None
        under_way_s = 0.0 if self.sending_since_s is None else now_s - self.sending_since_s
        return self.blocked_s + (under_way_s if under_way_s > WAITED_S else 0.0)


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


def too_large(limit_bytes: int) -> RequestRejected:
    """The rejection of a body that is larger than this."""
    return RequestRejected(RejectionKind.TOO_LARGE, f"the request's body is larger than {limit_bytes} bytes")


# --- Notices clients that do not send their body or do not read their answer.
#
# One periodic check of all clients instead of a timer for each wait: a wait costs two assignments.


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long clients may take. Deadlines are accurate to the time between two checks."""

    body_s: float = 30.0
    send_s: float = 60.0
    look_every_s: float = 1.0


class ClientWatch:
    """Tracks every client that is being served, and gives up on those that are too slow."""

    def __init__(self, timeouts: ClientTimeouts) -> None:
        self.timeouts = timeouts
        self._served: set[Client] = set()

    def __len__(self) -> int:
        return len(self._served)

    def add(self, client: Client) -> None:
        """The client's request has arrived."""
        self._served.add(client)

    def discard(self, client: Client) -> None:
        """The client's request has ended."""
        self._served.discard(client)

    def look(self, now_s: float) -> None:
        """Give up on clients that have taken too long by now, on the monotonic clock."""
        body_due_s, send_due_s = now_s - self.timeouts.body_s, now_s - self.timeouts.send_s
        for client in self._served:
            if client.reading_since_s is not None and client.reading_since_s < body_due_s:
                client.stop_reading()
            elif client.sending_since_s is not None and client.sending_since_s < send_due_s:
                client.give_up()

    async def run(self) -> None:
        """Check until cancelled."""
        guard = ErrorGuard("checking clients")
        while True:
            await asyncio.sleep(self.timeouts.look_every_s)
            with guard:
                self.look(time.monotonic())
