"""Limits on a connection until its request is complete: size, time and framing."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.fleet.config import EdgeLimits, byte_size
from phasewise.gateway.guard import ErrorGuard
from phasewise.gateway.http_errors import HTTP_ERRORS, JSON, error_body
from phasewise.gateway.overload import Stage
from phasewise.gateway.server.client import Headers, too_large
from phasewise.gateway.server.connection import WRITE_BUFFER_BYTES, ClientConnection
from phasewise.gateway.server.request_head import AllowedSites, check_body_form, check_repeated

logger = logging.getLogger("phasewise.gateway")

MOST_HEADERS = 100
LONGEST_LENGTH = 20
"""Digits of a content-length: as many as the largest number of 64 bits has."""
MOST_SENT_AHEAD = 100
"""Requests that a client may send on a connection before the one before them is answered."""
LOOK_EVERY_S = 1.0
KEEP_ALIVE_S = 75.0
"""So long a connection may be without a request."""
LINGER_S = 2.0
"""How long a rejected client may go on sending. After an immediate close its system would discard the
rejection, because data that it sent was not read."""
FRAMING_BYTES = 1024 * 1024
"""The bytes that a body's chunk framing may take beyond the size of the body itself."""
MOST_SMALL_CHUNKS = 4_096
SMALL_CHUNK_BYTES = 1_024
"""A body may have that many chunks, and one more for each of so many bytes: each costs a microsecond."""


@dataclass(frozen=True, slots=True)
class EdgeBounds:
    """The limits in bytes and seconds."""

    head_bytes: int
    body_bytes: int
    bodies_bytes: int
    head_s: float
    read_s: float

    @classmethod
    def of(cls, limits: EdgeLimits) -> EdgeBounds:
        """From the configuration."""
        return cls(
            byte_size(limits.head),
            byte_size(limits.body),
            byte_size(limits.bodies),
            limits.head_s,
            limits.read_s,
        )


@dataclass(frozen=True, slots=True)
class Untaken:
    """Unsent answer data: by `due_s` at most `most_left_bytes` of it may be left."""

    due_s: float
    most_left_bytes: int


class Edge:
    """Tracks connections with a deadline and idle ones, and checks them periodically.

    A request that arrives in one piece is never tracked, nor an answer that the kernel takes at once.
    """

    def __init__(
        self,
        bounds: EdgeBounds,
        count_rejection: Callable[[RejectionKind], None],
        sites: AllowedSites,
    ) -> None:
        self.bounds = bounds
        self.count_rejection = count_rejection
        self.sites = sites
        self.keeps_alive = True
        self.certificate: ssl.SSLContext | None = None
        """What new connections are shown; None: what the server was started with."""
        self.leaving = False
        self.stopping = False
        self._due_s: dict[EdgeConnection, float] = {}
        self._idle_since_s: dict[EdgeConnection, float] = {}
        self._untaken: dict[EdgeConnection, Untaken] = {}

    def __len__(self) -> int:
        return len(self._due_s.keys() | self._untaken.keys())

    def heed(self, stage: Stage) -> None:
        """What is given up under strain: idle connections are, first of all."""
        self.keeps_alive = stage < Stage.KEEP_ALIVE

    def show_certificate(self, tls: ssl.SSLObject, _name: str | None, _server: ssl.SSLContext) -> None:
        """A connection begins: choose what it is shown."""
        # Another certificate in the same context would be one more of them if its key is of another kind.
        if self.certificate is not None:
            tls.context = self.certificate

    def expect(self, connection: EdgeConnection, within_s: float) -> None:
        """The connection must make progress within this time; an earlier deadline stays."""
        self._due_s.setdefault(connection, time.monotonic() + within_s)

    def relieve(self, connection: EdgeConnection) -> None:
        """The connection has made progress, or is closed."""
        self._due_s.pop(connection, None)

    def idle(self, connection: EdgeConnection) -> None:
        """Its last request was answered, and no other has begun."""
        self._idle_since_s[connection] = time.monotonic()

    def busy(self, connection: EdgeConnection) -> None:
        """A request has begun, or the connection is closed."""
        self._idle_since_s.pop(connection, None)

    def expect_taking(self, connection: EdgeConnection, unsent_bytes: int) -> None:
        """Abort the connection if the client does not read its last answers in time."""
        due_s = time.monotonic() + self.bounds.read_s
        self._untaken[connection] = Untaken(due_s, max(0, unsent_bytes - WRITE_BUFFER_BYTES))

    def forget_taking(self, connection: EdgeConnection) -> None:
        """Another answer follows, whose sender waits for the client; or the connection is closed."""
        self._untaken.pop(connection, None)

    def look(self, now_s: float) -> None:
        """Notify connections whose deadline has passed, on the monotonic clock."""
        for connection, untaken in list(self._untaken.items()):
            if untaken.due_s <= now_s:
                del self._untaken[connection]
                connection.is_to_have_taken(untaken.most_left_bytes)
        for connection, due_s in list(self._due_s.items()):
            if due_s <= now_s:
                del self._due_s[connection]
                connection.is_late()
        # In the order in which they became idle.
        long_idle = takewhile(lambda item: item[1] <= now_s - KEEP_ALIVE_S, self._idle_since_s.items())
        for connection, _ in list(long_idle):
            connection.transport.close()

    async def run(self) -> None:
        """Check until cancelled."""
        guard = ErrorGuard("checking connections")
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with guard:
                self.look(time.monotonic())


class EdgeConnection(ClientConnection):
    """A connection that accepts only requests within bounds.

    llhttp already rejects ambiguous requests (both lengths, two lengths, folded lines, bare line ends,
    control characters, broken chunks). Further unwanted ones are rejected here.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        edge: Edge,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._edge = edge
        self._in_head = False
        self._in_message = False
        self._rejected = False
        self._block_bytes = 0
        self._block_is_fresh = False
        # Of the blocks that hold nothing but the head under way.
        self._head_bytes = 0
        self._message_bytes = 0
        self._chunks = self._chunk_bytes = 0

    def shutdown(self) -> None:
        """The server stops: answers that never end by themselves have to end now."""
        self._edge.stopping = True
        super().shutdown()

    # --- what comes in ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._edge.expect(self, self._edge.bounds.head_s)

    def data_received(self, data: bytes) -> None:
        """Some of a request has come."""
        if self._rejected:
            return
        self._block_bytes = len(data)
        self._block_is_fresh = not self._in_message
        if self._in_message:
            self._message_bytes += len(data)
            if self._in_head:
                self._head_bytes += len(data)
        if not self._parse(data):
            return
        if self._in_message:
            self._bound_what_is_under_way()
        elif self.latest is None or self.latest.complete:
            # Line ends before a head, or the rest of a body that was already answered: the next head is due.
            self._edge.expect(self, self._edge.bounds.head_s)

    def _parse(self, data: bytes) -> bool:
        """Whether nothing had to be rejected."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, RequestRejected):
                self._reject(cause)
                return False
            if cause is not None and not isinstance(cause, httptools.HttpParserError):
                logger.error("reading a request failed", exc_info=cause)
            self._reject(_bad("what was sent is not HTTP/1.1", hint="check its head and its framing"))
            return False
        return True

    def _bound_what_is_under_way(self) -> None:
        bounds = self._edge.bounds
        if self._in_head:
            self._edge.expect(self, bounds.head_s)
            if self._head_bytes > bounds.head_bytes:
                self._reject(_head_too_large(bounds))
        elif self._message_bytes > 2 * bounds.body_bytes + FRAMING_BYTES:
            # Chunk sizes, extensions and the like, which are not part of the body.
            self._reject(too_large(bounds.body_bytes))

    def on_message_begin(self) -> None:
        # In a block that began with another request, the start of this head is unknown.
        self._head_bytes = self._block_bytes if self._block_is_fresh else 0
        self._block_is_fresh = False
        self._message_bytes = 0
        self._chunks = self._chunk_bytes = 0
        self._in_message = self._in_head = True
        self._edge.busy(self)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._edge.relieve(self)
        self._edge.forget_taking(self)
        if len(self.pipeline) >= MOST_SENT_AHEAD:
            raise _bad("too many requests were sent before the first was answered")
        super().on_headers_complete()
        if self.latest is not None and (self._edge.leaving or not self._edge.keeps_alive):
            self.latest.keep_alive = False
        self.headers = _NO_TRAILERS

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        self._chunk_bytes += len(body)
        if self._chunks > MOST_SMALL_CHUNKS + self._chunk_bytes // SMALL_CHUNK_BYTES:
            raise _bad("the body has too many small chunks", hint="send chunks of a kilobyte or more")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._edge.relieve(self)
        super().on_message_complete()

    def answered(self) -> None:
        super().answered()
        if self.pipeline:
            # Otherwise all that a client sends ahead would be buffered.
            self.pause_reading()
        if self.latest is not None and not self.latest.complete:
            return  # the next one is under way already
        self._see_all_taken()
        if not self._in_message:
            self._edge.idle(self)
        elif not self._rejected:
            # The rest of a body that was already answered is read and dropped, within a deadline. The rest of
            # a pipelined head may have waited for us until now.
            self._edge.relieve(self)
            self._edge.expect(self, self._edge.bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._edge.relieve(self)
        self._edge.forget_taking(self)
        self._edge.busy(self)
        super().connection_lost(exc)

    # --- what goes out ----------------------------------------------------------------------------------

    def _see_all_taken(self) -> None:
        """Set a deadline for unsent data: a closed transport waits for ever if the client does not read."""
        if unsent_bytes := self.transport.get_write_buffer_size():
            self._edge.expect_taking(self, unsent_bytes)

    def is_to_have_taken(self, most_left_bytes: int) -> None:
        """By now, no more than this much unsent data may be left."""
        if self.transport.get_write_buffer_size() > most_left_bytes:
            self.transport.abort()
        else:
            self._see_all_taken()

    def _close(self) -> None:
        self.transport.close()
        self._see_all_taken()

    # --- what is rejected --------------------------------------------------------------------------------

    def check_head(self, method: bytes, version: str) -> None:
        bounds = self._edge.bounds
        self._check_size(bounds)
        if version not in {"1.1", "1.0"}:
            raise _bad("this needs HTTP/1.1", hint="use a client that speaks it")
        if self.parser.should_upgrade():
            raise _bad("the gateway takes no upgrade to another protocol", hint="stay with HTTP/1.1")
        if not self.url.startswith(b"/") or not self.url.isascii():
            raise _bad("the address is not a path", hint="send the path alone, as in GET /health")
        head = dict(self.headers)
        if len(head) < len(self.headers):
            check_repeated(self.headers)
        if b"host" not in head and version == "1.1":
            raise _bad("no host is named", hint="send the header host, as HTTP/1.1 demands")
        if not self.is_local:
            self.page_headers = self._edge.sites.check(method, head)
        if (length := head.get(b"content-length")) is not None:
            _check_length(length, bounds)
        encoding = head.get(b"transfer-encoding")
        if encoding is not None and (version == "1.0" or encoding.lower() != b"chunked"):
            reason = "only the transfer encoding chunked is taken, in HTTP/1.1"
            raise _bad(reason, hint="send the body as it is")
        if method == b"POST":
            check_body_form(self.url, head)

    def _check_size(self, bounds: EdgeBounds) -> None:
        if max(self._head_bytes, self._block_bytes) > bounds.head_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > bounds.head_bytes:
                raise _head_too_large(bounds)
        if len(self.headers) > MOST_HEADERS:
            raise RequestRejected(RejectionKind.HEAD_TOO_LARGE, f"more than {MOST_HEADERS} headers were sent")

    def is_late(self) -> None:
        """What was expected did not come in time."""
        if self._rejected or not self._in_head:
            # There is no request, or it is answered.
            self._close()
        elif self.latest is not None and not self.latest.complete:
            # A pipelined head whose rest may have waited for us: its time begins when it is next.
            self._edge.expect(self, self._edge.bounds.head_s)
        else:
            message = "the request's head did not come in time"
            self._reject(RequestRejected(RejectionKind.HEAD_TIMEOUT, message, hint="send it at once"))

    def _reject(self, rejection: RequestRejected) -> None:
        self._edge.count_rejection(rejection.kind)
        self._rejected = True
        self.resume_reading()
        latest = self.latest
        if latest is not None and not latest.complete:
            if latest.started or not latest.more_body or self.pipeline:
                # Another answer is under way; nothing may be written into it.
                self._close()
                return
            latest.left = True
            latest.wake_reader()
        self.transport.write(_answer(rejection, self.page_headers))
        self._linger()

    def answered_for_good(self) -> None:
        """As after a rejection, the rest of the request is read for a while."""
        if self._in_message and not self.pipeline:
            self._rejected = True
            self._linger()
        else:
            super().answered_for_good()

    def _linger(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._edge.relieve(self)
        self._edge.expect(self, LINGER_S)


class AdminConnection(EdgeConnection):
    """A connection to the admin socket of this process, which its user alone can reach."""

    is_local = True


class _NoTrailers(list[tuple[bytes, bytes]]):
    """Replaces the headers once they are complete: a body's trailers would be appended to them."""

    def append(self, item: tuple[bytes, bytes]) -> None:
        raise _bad("a body with trailers is not taken")


_NO_TRAILERS = _NoTrailers()


def _answer(rejection: RequestRejected, page_headers: Headers) -> bytes:
    error = HTTP_ERRORS[rejection.kind]
    body = error_body(str(rejection), error.type, code=rejection.kind)
    length = (b"content-length", b"%d" % len(body))
    headers = (*JSON, length, (b"connection", b"close"), *page_headers)
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return STATUS_LINE[error.status] + lines + b"\r\n" + body


def _check_length(value: bytes, bounds: EdgeBounds) -> None:
    # llhttp ensures that it is one number, but it may have any number of leading zeros.
    if len(value) > LONGEST_LENGTH:
        raise _bad("the content-length has too many digits")
    if int(value) > bounds.body_bytes:
        raise too_large(bounds.body_bytes)


def _head_too_large(bounds: EdgeBounds) -> RequestRejected:
    return RequestRejected(
        RejectionKind.HEAD_TOO_LARGE, f"the request's head is larger than {bounds.head_bytes} bytes"
    )


def _bad(message: str, hint: str | None = None) -> RequestRejected:
    return RequestRejected(RejectionKind.BAD_REQUEST, message, hint=hint)
