"""What a connection has to bear with before it has sent a whole request: size, time and framing.

A connection here is one of connection.py that refuses heads which are too large, too slow or ambiguous before
anything is started for them. Bodies that come too slowly are patience.py's, their fields fields.py's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from phasewise.config import EdgeLimits, byte_size
from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.connection import WRITE_BUFFER_BYTES, ClientConnection
from phasewise.gateway.guard import Guard
from phasewise.gateway.http_errors import HTTP_ERRORS, JSON, error_body
from phasewise.gateway.same_machine import check_same_machine

logger = logging.getLogger("phasewise.gateway")

MOST_HEADERS = 100
LOOK_EVERY_S = 1.0
LINGER_S = 2.0
"""How long a refused client may go on sending: closing at once would take the refusal away from it, because
systems throw away what was received when they learn that what they sent was not read."""
FRAMING_BYTES = 1024 * 1024
"""What a body's chunk sizes may take beyond as much as the body itself."""
HTTP_1_0_METHODS = frozenset({b"GET", b"HEAD"})
"""Load balancers ask for health in HTTP/1.0; answers that come in chunks cannot be told to such a client."""


@dataclass(frozen=True, slots=True)
class EdgeBounds:
    """The limits in bytes and seconds."""

    head_bytes: int
    body_bytes: int
    head_s: float
    read_s: float

    @classmethod
    def of(cls, limits: EdgeLimits) -> EdgeBounds:
        """From the configuration."""
        return cls(byte_size(limits.head), byte_size(limits.body), limits.head_s, limits.read_s)


@dataclass(frozen=True, slots=True)
class Untaken:
    """What is left of answers that were written: by `due_s` the client has to have so much of it, or all."""

    due_s: float
    most_left_bytes: int


class Edge:
    """Knows the connections that owe us something by a certain time, and looks after them now and then.

    A request that comes in one piece is never entered here, nor an answer that the system takes at once.
    """

    def __init__(
        self,
        bounds: EdgeBounds,
        count_refusal: Callable[[RefusalKind], None],
        *,
        this_machine_only: bool = False,
    ) -> None:
        self.bounds = bounds
        self.count_refusal = count_refusal
        self.this_machine_only = this_machine_only
        self._due_s: dict[EdgeConnection, float] = {}
        self._untaken: dict[EdgeConnection, Untaken] = {}

    def __len__(self) -> int:
        return len(self._due_s.keys() | self._untaken.keys())

    def expect(self, connection: EdgeConnection, within_s: float) -> None:
        """From now on the connection has so long to go on; an earlier deadline stays."""
        self._due_s.setdefault(connection, time.monotonic() + within_s)

    def relieve(self, connection: EdgeConnection) -> None:
        """It has done so, or is gone."""
        self._due_s.pop(connection, None)

    def expect_taking(self, connection: EdgeConnection, unsent_bytes: int) -> None:
        """Nobody waits any more until the connection's answers are taken: cut it if they are not."""
        due_s = time.monotonic() + self.bounds.read_s
        self._untaken[connection] = Untaken(due_s, max(0, unsent_bytes - WRITE_BUFFER_BYTES))

    def forget_taking(self, connection: EdgeConnection) -> None:
        """Another answer is to follow, whose sender waits for the client; or the connection is gone."""
        self._untaken.pop(connection, None)

    def look(self, now_s: float) -> None:
        """Tell those whose time is up by now, on the monotonic clock."""
        for connection in [it for it, untaken in self._untaken.items() if untaken.due_s <= now_s]:
            connection.is_to_have_taken(self._untaken.pop(connection).most_left_bytes)
        for connection in [it for it, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[connection]
            connection.is_late()

    async def run(self) -> None:
        """Look until cancelled."""
        guard = Guard("looking at connections")
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with guard:
                self.look(time.monotonic())


class EdgeConnection(ClientConnection):
    """A connection that takes requests within bounds only.

    llhttp already refuses what could be read in two ways (both lengths, two lengths, folded lines, bare line
    ends, control characters, broken chunks); what it lets pass and we do not want is refused here.
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
        self._refused = False
        self._block_bytes = 0
        self._block_is_fresh = False
        # Of the blocks that hold nothing but the head under way.
        self._head_bytes = 0
        self._message_bytes = 0

    # --- what comes in ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._edge.expect(self, self._edge.bounds.head_s)

    def data_received(self, data: bytes) -> None:
        if self._refused:
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
        elif self.cycle is None or self.cycle.response_complete:
            # Line ends before a head, or the end of a body that was answered already: the next head is due.
            self._edge.expect(self, self._edge.bounds.head_s)

    def _parse(self, data: bytes) -> bool:
        """Whether nothing had to be refused."""
        # In the place of uvicorn's, which logs whatever a stranger sends and answers into other answers.
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, RequestRefused):
                self._refuse(cause)
                return False
            if cause is not None and not isinstance(cause, httptools.HttpParserError):
                logger.error("reading a request failed", exc_info=cause)
            self._refuse(_bad("what was sent is not HTTP/1.1", hint="check its head and its framing"))
            return False
        return True

    def _bound_what_is_under_way(self) -> None:
        bounds = self._edge.bounds
        if self._in_head:
            self._edge.expect(self, bounds.head_s)
            if self._head_bytes > bounds.head_bytes:
                self._refuse(_head_too_large(bounds))
        elif self._message_bytes > 2 * bounds.body_bytes + FRAMING_BYTES:
            # Of chunk sizes, extensions and the like, which are nobody's body.
            self._refuse(_body_too_large(bounds))

    def on_message_begin(self) -> None:
        # In a block that began with another request, nobody knows where this head begins.
        self._head_bytes = self._block_bytes if self._block_is_fresh else 0
        self._block_is_fresh = False
        self._message_bytes = 0
        self._in_message = self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._edge.relieve(self)
        self._edge.forget_taking(self)
        self._check_head()
        super().on_headers_complete()
        self.headers = _NoTrailers()

    def on_message_complete(self) -> None:
        self._in_message = False
        self._edge.relieve(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete:
            return  # the next one is under way already
        self._see_all_taken()
        if self._in_message and not self._refused:
            # What is left of a body that was answered already is read and thrown away, but not for ever. And
            # of a head that came ahead, the rest may have waited for us until now.
            self._edge.relieve(self)
            self._edge.expect(self, self._edge.bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._edge.relieve(self)
        self._edge.forget_taking(self)
        super().connection_lost(exc)

    # --- what goes out ----------------------------------------------------------------------------------

    def _see_all_taken(self) -> None:
        """A transport that is closed sends all it has before it ends, to one who does not read: for ever."""
        if unsent_bytes := self.transport.get_write_buffer_size():
            self._edge.expect_taking(self, unsent_bytes)

    def is_to_have_taken(self, most_left_bytes: int) -> None:
        """By now, no more than so much of what was written should be left."""
        if self.transport.get_write_buffer_size() > most_left_bytes:
            self.transport.abort()
        else:
            self._see_all_taken()

    def _close(self) -> None:
        self.transport.close()
        self._see_all_taken()

    # --- what is refused --------------------------------------------------------------------------------

    def _check_head(self) -> None:
        bounds = self._edge.bounds
        self._check_size(bounds)
        self._check_version()
        if not self.url.startswith(b"/"):
            raise _bad("the address is not a path", hint="send the path alone, as in GET /health")
        hosts: list[bytes] = []
        origin: bytes | None = None
        for name, value in self.headers:
            if name == b"content-length":
                # llhttp has made sure that it is one number.
                if int(value) > bounds.body_bytes:
                    raise _body_too_large(bounds)
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise _bad("only the transfer encoding chunked is taken", hint="send the body as it is")
            elif name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origin = value
        self._check_whom_it_asks(hosts, origin)

    def _check_whom_it_asks(self, hosts: list[bytes], origin: bytes | None) -> None:
        if len(hosts) > 1:
            raise _bad("several hosts are named")
        if not hosts and self.parser.get_http_version() == "1.1":
            raise _bad("no host is named", hint="send the header host, as HTTP/1.1 demands")
        if self._edge.this_machine_only:
            check_same_machine(hosts[0] if hosts else None, origin)

    def _check_size(self, bounds: EdgeBounds) -> None:
        if max(self._head_bytes, self._block_bytes) > bounds.head_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > bounds.head_bytes:
                raise _head_too_large(bounds)
        if len(self.headers) > MOST_HEADERS:
            raise RequestRefused(RefusalKind.HEAD_TOO_LARGE, f"more than {MOST_HEADERS} headers were sent")

    def _check_version(self) -> None:
        version = self.parser.get_http_version()
        if version != "1.1" and (version != "1.0" or self.parser.get_method() not in HTTP_1_0_METHODS):
            raise _bad("this needs HTTP/1.1", hint="use a client that speaks it")
        if self.parser.should_upgrade():
            raise _bad("the gateway takes no upgrade to another protocol", hint="stay with HTTP/1.1")

    def is_late(self) -> None:
        """What was expected did not come in time."""
        cycle = self.cycle
        if self._refused or not self._in_head:
            # Nothing was asked, or what was asked is answered.
            self._close()
        elif cycle is not None and not cycle.response_complete:
            # Sent ahead, and we may have kept the rest of it from coming: its time begins with its turn.
            self._edge.expect(self, self._edge.bounds.head_s)
        else:
            message = "the request's head did not come in time"
            self._refuse(RequestRefused(RefusalKind.HEAD_TIMEOUT, message, hint="send it at once"))

    def _refuse(self, refusal: RequestRefused) -> None:
        self._edge.count_refusal(refusal.kind)
        self._refused = True
        self.flow.resume_reading()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or not cycle.more_body or self.pipeline:
                # Another answer is under way, into which nothing may be written.
                self._close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_answer(refusal))
        self._linger()

    def answered_for_good(self) -> None:
        """As when a request is refused: what is still to come of it is read, for a while."""
        if self._in_message and not self.pipeline:
            self._refused = True
            self._linger()
        else:
            super().answered_for_good()

    def _linger(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._edge.relieve(self)
        self._edge.expect(self, LINGER_S)


class _NoTrailers(list[tuple[bytes, bytes]]):
    """In the place of the headers once they are complete: uvicorn would add a body's trailers to them."""

    def append(self, item: tuple[bytes, bytes]) -> None:
        raise _bad("a body with trailers is not taken")


def _answer(refusal: RequestRefused) -> bytes:
    error = HTTP_ERRORS[refusal.kind]
    body = error_body(str(refusal), error.type, code=refusal.kind)
    headers = (*JSON, (b"content-length", b"%d" % len(body)), (b"connection", b"close"))
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return STATUS_LINE[error.status] + lines + b"\r\n" + body


def _head_too_large(bounds: EdgeBounds) -> RequestRefused:
    return RequestRefused(
        RefusalKind.HEAD_TOO_LARGE, f"the request's head is larger than {bounds.head_bytes} bytes"
    )


def _body_too_large(bounds: EdgeBounds) -> RequestRefused:
    return RequestRefused(
        RefusalKind.TOO_LARGE, f"the request's body is larger than {bounds.body_bytes} bytes"
    )


def _bad(message: str, hint: str | None = None) -> RequestRefused:
    return RequestRefused(RefusalKind.BAD_REQUEST, message, hint=hint)
