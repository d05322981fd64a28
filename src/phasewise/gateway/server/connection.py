"""A client's connection: reads its requests, and writes their answers without waking a task for each piece.

uvicorn's server accepts connections and stops them. Its own protocol builds a dozen objects more for each
request, and passes every piece of an answer through a task.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from phasewise.gateway.server.client import Headers, Listener, Scope

logger = logging.getLogger("phasewise.gateway")

WRITE_BUFFER_BYTES = 16 * 1024
"""More unsent data than this makes a stream wait: half a second of the fastest streams."""
UNSENT_BYTES = 16 * 1024
"""The kernel takes no more than this beyond the data in flight. Data in flight is not limited: a distant
client is served at full speed, while one that does not read is noticed soon."""
BODY_AHEAD_BYTES = 64 * 1024
"""More of a body than this is read only when it is asked for."""

# nginx would otherwise collect a stream until its buffers are full.
_STREAM = b"x-accel-buffering: no\r\n\r\n"
_CHUNKED_STREAM = b"transfer-encoding: chunked\r\n" + _STREAM
_FAILED = b"Internal Server Error"
_FAILED_HEADERS = ((b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"))


class DirectAnswer:
    """One request on a connection and its answer, written at once. Implements `Direct`.

    Nothing is written to a client that has left. `more_body`: some of the request is still to come.
    """

    __slots__ = (
        "_ahead_bytes",
        "_arrival",
        "_chunked",
        "_connection",
        "_expects_continue",
        "_page_headers",
        "_parts",
        "_transport",
        "complete",
        "keep_alive",
        "left",
        "listener",
        "more_body",
        "paused",
        "started",
    )
    may_be_chunked = True

    def __init__(
        self,
        connection: ClientConnection,
        *,
        keep_alive: bool,
        expects_continue: bool,
        page_headers: Headers = (),
    ) -> None:
        self.keep_alive = keep_alive
        self.more_body = True
        self.started = False
        self.complete = False
        self.left = False
        self.paused = False
        self.listener: Listener | None = None
        self._connection = connection
        self._transport = connection.transport
        self._parts: list[bytes] = []
        self._ahead_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._chunked = False
        self._expects_continue = expects_continue
        self._page_headers = page_headers

    # --- the request's body -----------------------------------------------------------------------------

    def add_part(self, part: bytes) -> int:
        """Some of the body has come; returns how many bytes of it nobody has read yet."""
        self._parts.append(part)
        self._ahead_bytes += len(part)
        self.wake_reader()
        return self._ahead_bytes

    def wake_reader(self) -> None:
        """More of the body has come, its end, or the end of the connection."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def take_body(self) -> bytes | None:
        """The request's body if all of it is here."""
        if self.more_body:
            return None
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_part(self) -> bytes | None:
        """The body's next bytes; empty at its end, None if the client has left."""
        if self._expects_continue:
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.keep_reading()
        while self.more_body and not self._parts and not self.left:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        if self.left:
            return None
        parts, self._parts, self._ahead_bytes = self._parts, [], 0
        return b"".join(parts)

    def keep_reading(self) -> None:
        """Read from the client, so that a disconnect is noticed; a long body may have paused reading."""
        self._connection.resume_reading()

    # --- the answer -------------------------------------------------------------------------------------

    def start(self, status: int, headers: Headers) -> None:
        """Write the head of an answer; without a length it is a stream, and chunked if possible."""
        if not self.left:
            framing = b"\r\n"
            if all(name != b"content-length" for name, _ in headers):
                self._chunked = self.may_be_chunked
                framing = _CHUNKED_STREAM if self._chunked else _STREAM
            self._transport.write(self._head(status, headers) + framing)

    def write(self, data: bytes) -> None:
        """Write some bytes of an answer that was started."""
        if data and not self.left:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def write_chunks(self, chunks: bytes) -> None:
        """Write chunks that have their sizes before them, of an answer in chunks."""
        if not self.left:
            self._transport.write(chunks)

    def finish(self, last: bytes) -> None:
        """Write the last bytes of an answer that was started."""
        if not self.left:
            if last:
                self.write(last)
            if self._chunked:
                self._transport.write(b"0\r\n\r\n")
            self._complete()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a whole answer."""
        if not self.left:
            head = self._head(status, headers)
            self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
            self._complete()

    def lose(self) -> None:
        """The connection is lost; notify the listener, unless the answer is complete."""
        self.left = True
        self.wake_reader()
        # The connection never becomes writable again, and further writes are dropped.
        self.paused = False
        if (listener := self.listener) is not None:
            self.listener = None
            listener.has_left()

    def drop(self) -> None:
        """Abort the connection; unsent data is lost."""
        self._transport.abort()

    def served(self, task: asyncio.Task[None]) -> None:
        """The task that answers has ended; an answer that it left incomplete ends the connection."""
        self._connection.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("answering a request failed", exc_info=error)
        if self.complete or self.left:
            return
        if self.started:
            self._transport.close()
        else:
            self.respond(500, _FAILED_HEADERS, _FAILED)

    def _head(self, status: int, headers: Headers) -> bytes:
        self.started = True
        self._expects_continue = False
        lines = [STATUS_LINE[status]]
        for name, value in (*self._connection.default_headers, *self._page_headers, *headers):
            if b"\n" in value or b"\r" in value:
                raise RuntimeError(f"a value of the header {name!r} has a line end in it")
            if name == b"connection":  # it is only ever `close`
                self.keep_alive = False
            else:
                lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join(lines)

    def _complete(self) -> None:
        self.complete = True
        self.listener = None
        if not self.keep_alive:
            self._connection.answered_for_good()
        self._connection.answered()


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


class ClientConnection(asyncio.Protocol):
    """A connection with direct writes and aborts, which soon notices a slow reader.

    An ordinary close waits until everything is sent, which never happens if the client does not read.
    `latest` is the request that came last: of several pipelined ones, only the first is being answered.
    """

    transport: asyncio.Transport
    is_local = False
    """Whether clients connect to a socket that this process's user alone can reach."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        del app_state
        self.connections = server_state.connections
        self.tasks = server_state.tasks
        self.parser = httptools.HttpRequestParser(self)
        # The rest of a request that was already answered may follow the last answer.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.pipeline: deque[tuple[Scope, DirectAnswer]] = deque()
        self.latest: DirectAnswer | None = None
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._app = config.loaded_app
        self._loop = _loop or asyncio.get_running_loop()
        self._server_state = server_state
        self._answer: DirectAnswer | None = None
        self.page_headers: Headers = ()
        """Those that let a web page read the answer to the latest request."""
        self._expects_continue = False
        self._reads = True
        self._write_paused = False

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of every answer: the server renews the date."""
        return self._server_state.default_headers

    # --- the connection, called by the event loop and the server ------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        self.transport = transport
        self.connections.add(self)  # type: ignore[arg-type] # it has what the server calls
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if sys.platform != "win32" and not self.is_local:
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def pause_writing(self) -> None:
        """The client takes no data now."""
        self._write_paused = True
        if self._answer is not None:
            self._answer.paused = True

    def resume_writing(self) -> None:
        """The client takes data again."""
        self._write_paused = False
        if self._answer is not None:
            self._answer.paused = False
            if self._answer.listener is not None:
                self._answer.listener.is_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.connections.discard(self)
        self.pipeline.clear()
        answer, self._answer, self.latest = self._answer, None, None
        if answer is not None and not answer.complete:
            answer.lose()
        del self.parser  # breaks the reference cycle between the two

    def shutdown(self) -> None:
        """The server stops: the answer under way is the last one."""
        if self.latest is None or self.latest.complete:
            self.transport.close()
        else:
            self.latest.keep_alive = False

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        if self._reads:
            self._reads = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if not self._reads:
            self._reads = True
            self.transport.resume_reading()

    # --- answers ------------------------------------------------------------------------------------------

    def _start(self, scope: Scope, answer: DirectAnswer) -> None:
        self._answer = answer
        answer.paused = self._write_paused
        task = self._loop.create_task(self._app.serve(scope, answer))
        self.tasks.add(task)
        task.add_done_callback(answer.served)

    def answered(self) -> None:
        """An answer was written: the next pipelined request is served."""
        if self.transport.is_closing():
            return
        self.resume_reading()
        if self.pipeline:
            self._start(*self.pipeline.pop())

    def answered_for_good(self) -> None:
        """The last answer on this connection was written."""
        self.transport.close()

    # --- httptools callbacks --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self.url = b""
        self.headers = []
        self.page_headers = ()
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        """Some of its address has come."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        parser = self.parser
        method, version = parser.get_method(), parser.get_http_version()
        self.check_head(method, version)
        path, _, query = self.url.partition(b"#")[0].partition(b"?")
        scope: Scope = {
            "method": method.decode("ascii"),
            "path": unquote(path.decode("ascii")) if b"%" in path else path.decode("ascii"),
            "query_string": query,
            "headers": self.headers,
            "is_local": self.is_local,
        }
        kind = DirectAnswer if version == "1.1" else UnchunkedAnswer
        answer = (HeadAnswer if method == b"HEAD" else kind)(
            self,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            # A client that speaks HTTP/1.0 does not know the interim answer.
            expects_continue=self._expects_continue and version != "1.0",
            page_headers=self.page_headers,
        )
        before, self.latest = self.latest, answer
        if before is None or before.complete:
            self._start(scope, answer)
        else:
            self.pause_reading()
            self.pipeline.appendleft((scope, answer))

    def check_head(self, method: bytes, version: str) -> None:
        """Reject a request by its head."""

    def on_body(self, body: bytes) -> None:
        """Some of its body has come; that of a request that was already answered is dropped."""
        latest = self.latest
        if latest is not None and not latest.complete and latest.add_part(body) > BODY_AHEAD_BYTES:
            self.pause_reading()

    def on_message_complete(self) -> None:
        """All of it has come."""
        if self.latest is not None:
            self.latest.more_body = False
            self.latest.wake_reader()
