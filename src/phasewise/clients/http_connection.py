"""One HTTP/1.1 connection to a server, and the exchange on it: the reply is read as it arrives.

httptools parses, the event loop's transport does the IO.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.units import duration

Headers = Sequence[tuple[bytes, bytes]]

READ_AHEAD_BYTES = 256 * 1024
"""With this much unread, we stop reading: the engine's socket fills and the engine waits."""
HEAD_LIMIT_BYTES = 64 * 1024
"""A longer head or longer trailers break the exchange: both are held in memory until they end."""
_SIZE_LINE_BYTES = 10
_SIZES = {b"%x" % size: size for size in range(1, 4_096)}
"""Of a token's chunk, by its usual size line; the parser reads larger chunks and all other forms."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines of one exchange: to connect, until the reply's head, and between two reads of its body."""

    connect_s: float = 5.0
    head_s: float = 600.0
    idle_s: float = 300.0


class Reader(Protocol):
    """Receives a body when it arrives. It blocks the event loop, so it must be quick.

    Its methods may be attributes that hold functions, which saves a call per chunk.
    """

    def take(self, parts: Sequence[bytes]) -> None:
        """Take the body pieces of one read; an UpstreamError says how the reply broke."""

    def takes_chunk(self, data: bytes, start: int, end: int) -> bool:
        """Whether the chunk data[start:end] may be forwarded unchanged."""

    def pass_on(self, chunks: bytes) -> None:
        """Forward chunks unchanged, with their size lines; `takes_chunk` has accepted each of them."""


CLOSES_AFTER_STREAMS = (b"server", b"llama.cpp")
"""A server that closes its connection after a streamed reply and does not say so."""
STREAMED = (b"transfer-encoding", b"chunked")


class Connection(asyncio.Protocol):
    """One TCP connection and the exchange on it."""

    __slots__ = (
        "_arrivals",
        "_begun",
        "_between_chunks",
        "_chunk_ended",
        "_error",
        "_framing_bytes",
        "_head_done",
        "_idle",
        "_keep_alive",
        "_last_activity_s",
        "_loop",
        "_parser",
        "_parts",
        "_paused",
        "_queued_bytes",
        "_reader",
        "_registry",
        "_transport",
        "_wait_limit_s",
        "_waiter",
        "_watchdog",
        "body_done",
        "headers",
        "sent_at_s",
        "status",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        registry: set[Connection],
        idle: dict[Connection, None],
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._error: UpstreamError | None = None
        self._last_activity_s = 0.0
        self.sent_at_s = 0.0
        self._arrivals = select.poll()
        # One for all exchanges: a connection is reused only after its reply was read to the end.
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._queued_bytes = 0
        self._framing_bytes = 0
        self._begun = False
        self._paused = False
        self._head_done = False
        self.body_done = False
        """Whether the whole reply has arrived; some of it may be unread."""
        self._keep_alive = False
        self._wait_limit_s = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._reader: Reader | None = None
        self._chunk_ended = False
        self._between_chunks = False

    # --- the exchange, called by the client -------------------------------------------------------------

    async def exchange(self, head: bytes, body: bytes, timeouts: Timeouts) -> None:
        """Write a request and wait for the reply's head."""
        self._reset()
        transport = self._transport
        if transport is None or transport.is_closing():
            raise UpstreamError(FailureKind.CLOSED, "the connection was closed before use")
        self._expect_within(timeouts.head_s)
        # Not the loop's clock: uvloop's is constant within an iteration and counts whole milliseconds.
        self.sent_at_s = time.monotonic()
        transport.write(head + body if len(body) < READ_AHEAD_BYTES else head)
        if len(body) >= READ_AHEAD_BYTES:
            transport.write(body)
        while not self._head_done:
            await self._wait()
        if not self.body_done:
            self._expect_within(timeouts.idle_s)

    async def read(self) -> bytes:
        """Body bytes that have arrived, or else the next ones; empty at the end."""
        while not self._parts:
            if self.body_done:
                return b""
            self.resume()
            await self._wait()
        parts, self._parts, self._queued_bytes = self._parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_into(self, reader: Reader) -> None:
        """Pass body bytes to `reader` read by read, after those that arrived before this call."""
        parts, self._parts, self._queued_bytes = self._parts, [], 0
        self.resume()
        if parts:
            reader.take(parts)
        self._reader = reader
        try:
            while not self.body_done:
                await self._wait()
        finally:
            self._reader = None

    def pause(self) -> None:
        """Stop reading for now."""
        # After the reply's end nothing more arrives, and no reader would resume.
        if not self._paused and not self.body_done and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._last_activity_s = self._loop.time()  # we caused the silence
            if not self._transport.is_closing():
                self._transport.resume_reading()

    @property
    def finished_cleanly(self) -> bool:
        """Whether the exchange ended correctly, so that the connection can be reused."""
        return (
            self.body_done
            and self._error is None
            and not self._parts
            and not self._paused
            and self._transport is not None
            and not self._transport.is_closing()
            # The server replied to a partial request: it may parse the next request as the rest of this one.
            and self._transport.get_write_buffer_size() == 0
            and self._keep_alive
        )

    def reusable(self, within_s: float) -> bool:
        """Whether the connection is open, was used recently enough and holds no unexpected bytes."""
        alive = self._error is None and self._transport is not None and not self._transport.is_closing()
        recent = self._loop.time() - self._last_activity_s < within_s
        # The socket may hold what the event loop has not seen: its end, or bytes that would be read as the
        # next request's reply.
        return alive and recent and not self._arrivals.poll(0)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def abort_if_silent(self, for_s: float) -> None:
        """Abort the exchange if a reader waits for it and nothing arrived for this long."""
        waiting = self._waiter is not None and not self._waiter.done() and not self._paused
        silent_s = self._loop.time() - self._last_activity_s
        if waiting and silent_s >= for_s:
            self._break_off(
                UpstreamError(FailureKind.TIMED_OUT, f"the worker sent nothing for {duration(silent_s)}")
            )

    def abort_if_not_begun(self) -> None:
        """Abort the exchange if a reader waits for it and nothing of the reply's body has come."""
        if self._waiter is not None and not self._waiter.done() and not self._begun:
            self._break_off(UpstreamError(FailureKind.TIMED_OUT, "the worker made no progress"))

    @property
    def heard_s(self) -> float:
        """When a byte of the reply last came, on the event loop's clock; 0 before its head."""
        return self._last_activity_s if self._head_done else 0.0

    async def _wait(self) -> None:
        if self._error is not None:
            raise _afresh(self._error)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: UpstreamError) -> None:
        if self._error is None:
            self._error = _afresh(error)
        self._wake()

    # --- deadlines: one timer per connection that checks the last activity, not one per chunk -------------

    def _expect_within(self, limit_s: float) -> None:
        self._wait_limit_s = limit_s
        self._last_activity_s = self._loop.time()
        if self._watchdog is not None:
            if self._watchdog.when() <= self._last_activity_s + limit_s:
                return  # the timer fires early enough, and then sets itself again
            self._watchdog.cancel()
        self._watchdog = self._loop.call_later(limit_s, self._check_deadline)

    def _check_deadline(self) -> None:
        self._watchdog = None
        waiting = self._waiter is not None and not self._paused
        silent_s = self._loop.time() - self._last_activity_s
        if waiting and silent_s >= self._wait_limit_s:
            missing = "byte of the reply's body" if self._head_done else "whole head of a reply"
            why = f"no {missing} came for {duration(silent_s)}"
            self._break_off(UpstreamError(FailureKind.TIMED_OUT, why))
        elif not self.body_done and self._error is None:
            remaining_s = max(self._wait_limit_s - silent_s, 0.0) if waiting else self._wait_limit_s
            self._watchdog = self._loop.call_later(max(remaining_s, 0.01), self._check_deadline)

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports share no base class with it.
        self._transport = cast(asyncio.Transport, transport)
        self._registry.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._arrivals.register(sock.fileno(), select.POLLIN)

    def eof_received(self) -> None:
        """The server has closed, which ends a reply without a length."""
        framing = {b"content-length", b"transfer-encoding"}
        if self._head_done and framing.isdisjoint(name for name, _ in self.headers):
            self.body_done = True
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.discard(self)
        self._idle.pop(self, None)
        if self._watchdog is not None:
            self._watchdog.cancel()
        if not self.body_done:
            self._fail(UpstreamError(FailureKind.CLOSED, "the connection was closed in mid-reply"))
        del self._parser  # breaks the reference cycle between the two

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is not None and self._between_chunks and not (data := _pass_chunks(data, reader)):
            # A whole chunk does not change the parser's state, so the parser need not see it.
            self._last_activity_s = self._loop.time()
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        queued_bytes = self._queued_bytes
        broken: UpstreamError | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # An exception of our callback is the context of the parser's own error.
            broken = _not_http(f"the reply is not HTTP ({error.__context__ or error})")
        # After a chunk, anything but a line end starts the next chunk's size; after the last chunk, nothing
        # may follow.
        self._between_chunks = self._chunk_ended and not self.body_done and data.endswith(b"\r\n")
        if self._head_done:  # before that, the deadline covers the whole head
            self._last_activity_s = self._loop.time()
        if self._queued_bytes == queued_bytes:
            self._framing_bytes += len(data)
            if self._framing_bytes > HEAD_LIMIT_BYTES:
                broken = _not_http(f"a reply's head or trailers are larger than {HEAD_LIMIT_BYTES} bytes")
        else:
            self._framing_bytes = 0
            self._begun = True
            broken = self._deliver() or broken
        if broken is not None:
            self._break_off(broken)
        elif self._waiter is not None and (self._parts or self.body_done):
            self._wake()

    def _deliver(self) -> UpstreamError | None:
        """Pass what arrived to the reader, or keep it; returns how the reply broke, if it did."""
        if self._reader is not None:
            parts, self._parts, self._queued_bytes = self._parts, [], 0
            try:
                self._reader.take(parts)
            except UpstreamError as error:
                return error
        elif self._queued_bytes > READ_AHEAD_BYTES:
            self.pause()
        return None

    def _break_off(self, error: UpstreamError) -> None:
        self._fail(error)
        self.abort()

    # --- httptools callbacks --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A reply begins. Each request has exactly one, so a second one is an error."""
        if self.body_done:
            raise httptools.HttpParserError("bytes that no request asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line; trailers are dropped."""
        if not self._head_done:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete; an interim reply (1xx) is skipped."""
        status = self._parser.get_status_code()
        if status < 100 or status == 101:
            raise httptools.HttpParserError(f"status {status:03}")
        if status < 200:
            self.headers.clear()
            return
        self.status = status
        closes_unsaid = CLOSES_AFTER_STREAMS in self.headers and STREAMED in self.headers
        self._keep_alive = bool(self._parser.should_keep_alive()) and not closes_unsaid
        self._head_done = True
        self._wake()

    def on_body(self, body: bytes) -> None:
        """Some decoded body bytes."""
        self._parts.append(body)
        self._queued_bytes += len(body)

    def on_chunk_header(self) -> None:
        """A chunk's size has arrived; the last chunk's size is 0."""
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        """A chunk is complete."""
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        """The reply is complete."""
        if self._head_done:
            self.body_done = True


def _not_http(why: str) -> UpstreamError:
    return UpstreamError(FailureKind.PROTOCOL, why)


def _afresh(error: UpstreamError) -> UpstreamError:
    """The same error without its traceback, which would keep the frames of all waiting tasks alive."""
    return UpstreamError(error.kind, error.message, hint=error.hint)


def _pass_chunks(data: bytes, reader: Reader) -> bytes:
    """Offer the reader the whole chunks at the start of these bytes; returns the rest."""
    at, size, takes_chunk = 0, len(data), reader.takes_chunk
    while at < size:
        start = data.find(b"\r\n", at, at + _SIZE_LINE_BYTES) + 2
        end = start + _SIZES.get(data[at : start - 2], size)
        if not data.startswith(b"\r\n", end) or not takes_chunk(data, start, end):
            break
        at = end + 2
    if at == size:
        reader.pass_on(data)
        return b""
    if at:
        reader.pass_on(data[:at])
    return data[at:]
