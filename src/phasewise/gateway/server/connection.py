"""A client's connection: uvicorn's, plus direct writes, without waking a task for each piece.

uvicorn parses requests, keeps connections alive and starts the application.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from phasewise.gateway.server.client import DIRECT, Headers, Listener

WRITE_BUFFER_BYTES = 16 * 1024
"""More unsent data than this makes a stream wait: half a second of the fastest streams."""
UNSENT_BYTES = 16 * 1024
"""The kernel takes no more than this beyond the data in flight. Data in flight is not limited: a distant
client is served at full speed, while one that does not read is noticed soon."""


class DirectAnswer:
    """The answer to one request, written at once, with the bookkeeping of uvicorn's `send`.

    Nothing is written to a client that has left.
    """

    __slots__ = ("_connection", "_cycle", "_transport", "listener", "paused")
    may_be_chunked = True

    def __init__(self, connection: ClientConnection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle
        self._transport = connection.transport
        self.listener: Listener | None = None
        self.paused: bool = connection.flow.write_paused
        """Whether the client takes no data now. Further writes wait in memory."""

    @property
    def complete(self) -> bool:
        """Whether everything was written."""
        return self._cycle.response_complete

    @property
    def left(self) -> bool:
        """Whether the client went away before its answer was complete."""
        return self._cycle.disconnected

    def take_body(self) -> bytes | None:
        """The request's body if all of it is here."""
        cycle = self._cycle
        if cycle.more_body:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def keep_reading(self) -> None:
        """Read from the client, so that a disconnect is noticed; a long body may have paused reading."""
        self._connection.flow.resume_reading()

    def start(self, status: int, headers: Headers) -> None:
        """Write the head of an answer; without a length it is chunked, if possible."""
        cycle = self._cycle
        if not cycle.disconnected:
            cycle.response_started = True
            cycle.waiting_for_100_continue = False
            cycle.chunked_encoding = self.may_be_chunked and all(
                name != b"content-length" for name, _ in headers
            )
            framing = b"transfer-encoding: chunked\r\n\r\n" if cycle.chunked_encoding else b"\r\n"
            self._transport.write(self._head(status, headers) + framing)

    def write(self, data: bytes) -> None:
        """Write some bytes of an answer that was started."""
        cycle = self._cycle
        if data and not cycle.disconnected:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if cycle.chunked_encoding else data)

    def write_chunks(self, chunks: bytes) -> None:
        """Write chunks that have their sizes before them, of an answer in chunks."""
        if not self._cycle.disconnected:
            self._transport.write(chunks)

    def finish(self, last: bytes) -> None:
        """Write the last bytes of an answer that was started."""
        cycle = self._cycle
        if not cycle.disconnected:
            if last:
                self.write(last)
            if cycle.chunked_encoding:
                self._transport.write(b"0\r\n\r\n")
            self._complete()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a whole answer."""
        cycle = self._cycle
        if not cycle.disconnected:
            cycle.response_started = True
            cycle.waiting_for_100_continue = False
            head = self._head(status, headers)
            self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
            self._complete()

    def lose(self) -> None:
        """The connection is lost; notify the listener, unless the answer is complete."""
        # uvicorn marks only the last request, which may still wait for this answer.
        self._cycle.disconnected = True
        # The connection never becomes writable again, and further writes are dropped.
        self.paused = False
        if (listener := self.listener) is not None:
            self.listener = None
            listener.has_left()

    def drop(self) -> None:
        """Abort the connection; unsent data is lost."""
        self._transport.abort()

    def _head(self, status: int, headers: Headers) -> bytes:
        cycle = self._cycle
        lines = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            if b"\n" in value or b"\r" in value:
                raise RuntimeError(f"a value of the header {name!r} has a line end in it")
            if name == b"connection":  # it is only ever `close`
                cycle.keep_alive = False
            else:
                lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join(lines)

    def _complete(self) -> None:
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        self.listener = None
        if not cycle.keep_alive:
            self._connection.answered_for_good()
        cycle.on_response()


class UnchunkedAnswer(DirectAnswer):
    """The answer to a request in HTTP/1.0: the connection's end is the answer's."""

    __slots__ = ()
    may_be_chunked = False


class HeadAnswer(UnchunkedAnswer):
    """The answer to HEAD: the head that GET would have."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        """The body is left out."""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write the head of a whole answer."""
        self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.finish(b"")


class ClientConnection(HttpToolsProtocol):
    """A connection with direct writes and aborts, which soon notices a slow reader.

    An ordinary close waits until everything is sent, which never happens if the client does not read.
    """

    _answer: DirectAnswer | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if sys.platform != "win32":
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        # Not when the request begins: of several pipelined requests only one is answered at a time.
        scope = cycle.scope
        kind = DirectAnswer if scope["http_version"] == "1.1" else UnchunkedAnswer
        self._answer = (HeadAnswer if scope["method"] == "HEAD" else kind)(self, cycle)
        scope["extensions"] = {DIRECT: self._answer}  # type: ignore[dict-item]
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer is not None:
            self._answer.paused = True

    def answered_for_good(self) -> None:
        """The last answer on this connection was written."""
        self.transport.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer is not None:
            self._answer.paused = False
            if self._answer.listener is not None:
                self._answer.listener.is_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        answer, self._answer = self._answer, None
        if answer is not None and not answer.complete:
            answer.lose()
