"""HTTP/1.1 to one origin: a keep-alive pool of connections whose bodies are read as they arrive.

It does not retry: a broken exchange is an UpstreamError that says how it broke.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

from phasewise.clients.http_connection import Connection, Headers, Reader, Timeouts
from phasewise.core import known_keys
from phasewise.core.errors import FailureKind, UpstreamError, UsageError

__all__ = ["Access", "Headers", "HttpClient", "Reply", "StreamedReply", "Timeouts"]

REUSE_WITHIN_S = 4.0
"""vLLM's server closes connections after 5 s idle; one that was idle for longer than this is not reused."""
FETCH_LIMIT_BYTES = 64 * 1024 * 1024
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, read completely."""

    status: int
    headers: Headers
    body: bytes


class Access:
    """What a server asks of its clients: a key, and for TLS its own authority and a certificate.

    Several clients may share one, and it may be given other values at any time.
    """

    __slots__ = ("header_lines", "tls")

    def __init__(self, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.header_lines = b"" if key is None else b"authorization: Bearer %b\r\n" % key.encode()
        self.tls = tls

    def become(self, other: Access) -> None:
        """From now on the other's key, and for new connections its TLS."""
        self.header_lines, self.tls = other.header_lines, other.tls


class HttpClient:
    """A client for one origin. Not shared between event loops.

    `socket_options` are set on each of its connections, as `setsockopt` takes them. With `unix_socket` it
    connects there, wherever the address leads.
    """

    def __init__(
        self,
        base_url: str,
        timeouts: Timeouts | None = None,
        access: Access | None = None,
        socket_options: Sequence[tuple[int, int, int]] = (),
        unix_socket: Path | None = None,
    ) -> None:
        parts = _split_address(base_url)
        self.base_url = base_url.rstrip("/")
        self._host = str(parts.hostname)
        # Trusts the system's certificate authorities, or those in SSL_CERT_FILE.
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._access = access or Access(known_keys.find(base_url))
        self._port = parts.port or (80 if self._tls is None else 443)
        self._prefix = parts.path.rstrip("/")
        self._timeouts = timeouts or Timeouts()
        self._authority = parts.netloc
        self._socket_options = socket_options
        self._unix_socket = unix_socket
        # Ordered by when they were returned: the most recently used one is used next.
        self._idle: dict[Connection, None] = {}
        self._open: set[Connection] = set()

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Headers = (),
        body: bytes = b"",
        not_after_s: float | None = None,
    ) -> StreamedReply:
        """Send a request and return when the reply's head has arrived; its body follows as it arrives.

        `not_after_s`, on the monotonic clock, is for requests that fetch KV with a lease: connecting takes
        time too, and after that time the request is not sent.
        """
        connection = self._reuse() or await self._connect()
        try:
            if not_after_s is not None and time.monotonic() > not_after_s:
                raise UpstreamError(FailureKind.TOO_LATE, "the time to request this KV has passed")
            await connection.exchange(self._head(method, path, headers, body), body, self._timeouts)
        except BaseException:
            connection.abort()
            raise
        return StreamedReply(self, connection)

    async def fetch(self, method: str, path: str, *, headers: Headers = (), body: bytes = b"") -> Reply:
        """Send a request and read the whole reply."""
        async with await self.send(method, path, headers=headers, body=body) as reply:
            return Reply(reply.status, reply.headers, await reply.read_all(FETCH_LIMIT_BYTES))

    def abort_silent(self, for_s: float) -> None:
        """Abort exchanges that have waited this long without receiving a byte; the others go on."""
        for connection in tuple(self._open):
            connection.abort_if_silent(for_s)

    def abort_not_begun(self) -> None:
        """Abort exchanges whose reply has no body yet; the others go on."""
        for connection in tuple(self._open):
            connection.abort_if_not_begun()

    @property
    def last_heard_s(self) -> float:
        """When a byte of a reply last came on an open connection, on the event loop's clock; 0 for never."""
        return max((connection.heard_s for connection in self._open), default=0.0)

    @property
    def is_busy(self) -> bool:
        """Whether an exchange is under way."""
        return len(self._open) > len(self._idle)

    def close(self) -> None:
        """Close every connection, including busy ones."""
        for connection in tuple(self._open):
            connection.abort()
        self._idle.clear()

    def _reuse(self) -> Connection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.reusable(REUSE_WITHIN_S):
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()

        def connect() -> Connection:
            return Connection(loop, self._open, self._idle)

        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                if self._unix_socket is not None:
                    transport, connection = await loop.create_unix_connection(connect, str(self._unix_socket))
                else:
                    tls = self._tls and (self._access.tls or self._tls)
                    transport, connection = await loop.create_connection(
                        connect, self._host, self._port, ssl=tls
                    )
        except TimeoutError:
            raise UpstreamError(
                FailureKind.TIMED_OUT,
                f"{self.base_url} did not accept a connection in {self._timeouts.connect_s:g} s",
            ) from None
        except OSError as error:
            kind = FailureKind.NO_SOCKET if _is_ours(error) else FailureKind.CONNECTION_REFUSED
            raise UpstreamError(kind, f"{self.base_url} cannot be reached ({_reason(error)})") from error
        for option in self._socket_options:
            transport.get_extra_info("socket").setsockopt(*option)
        return connection

    def _head(self, method: str, path: str, headers: Headers, body: bytes) -> bytes:
        line = f"{method} {self._prefix}{path} HTTP/1.1\r\nhost: {self._authority}\r\n"
        parts = [line.encode(), self._access.header_lines]
        if body and all(name != b"content-type" for name, _ in headers):
            parts.append(b"content-type: application/json\r\n")
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        if body or method in {"POST", "PUT"}:
            parts.append(b"content-length: %d\r\n" % len(body))
        parts.append(b"\r\n")
        return b"".join(parts)

    def _give_back(self, connection: Connection) -> None:
        if connection.finished_cleanly:
            self._idle[connection] = None
        else:
            connection.abort()


def _reason(error: OSError) -> str:
    """Why there is no connection, in the same words for every event loop."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: its certificate is not trusted, {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        why = error.reason or "no handshake"
        no_tls = why == "WRONG_VERSION_NUMBER"
        return f"TLS failed: {'the server speaks none' if no_tls else why.lower().replace('_', ' ')}"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    return os.strerror(error.errno) if error.errno else str(error)


def _is_ours(error: OSError) -> bool:
    """Whether this process or machine cannot connect, which says nothing about the server."""
    if error.errno in _SHORTAGES:
        return True
    try:  # without a free descriptor, the resolver's own error is meaningless
        socket.socket().close()
    except OSError:
        return True
    return False


def _split_address(base_url: str) -> SplitResult:
    secretive = any(mark in base_url for mark in "@?#")
    try:
        parts = urlsplit(base_url)
        name = (parts.hostname or "").encode("idna")  # raises on an invalid name, as the resolver would
        spaced = any(map(str.isspace, base_url))
        usable = parts.scheme in {"http", "https"} and name and parts.port != 0 and not spaced
    except ValueError:
        usable = False
    if secretive or not usable:
        shown = "an address with a user, a query or a fragment" if secretive else repr(base_url)
        raise UsageError(f"{shown} is not a usable address", hint="write it as http://host:port")
    return parts


class StreamedReply:
    """A reply whose head has arrived. Leaving its context ends the exchange, early if necessary.

    Header names are in lower case, values are unchanged; `sent_at_s` is when the request was written, on the
    monotonic clock.
    """

    __slots__ = ("_client", "_connection", "headers", "sent_at_s", "status")

    def __init__(self, client: HttpClient, connection: Connection) -> None:
        self._client = client
        self._connection: Connection | None = connection
        self.status = connection.status
        self.headers: Headers = connection.headers
        self.sent_at_s = connection.sent_at_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def read(self) -> Coroutine[Any, Any, bytes]:
        """The body bytes that arrived since the last call; waits for some; empty at the end."""
        return self._live.read()

    async def read_all(self, limit_bytes: int) -> bytes:
        """The rest of the body."""
        connection = self._live
        part = await connection.read()
        if connection.body_done and len(part) <= limit_bytes:
            return part  # short replies arrive in one piece
        parts: list[bytes] = []
        size = 0
        while part:
            size += len(part)
            if size > limit_bytes:
                raise UpstreamError(FailureKind.PROTOCOL, f"a reply is larger than {limit_bytes} bytes")
            parts.append(part)
            part = await connection.read()
        return b"".join(parts)

    def pour(self, sink: Callable[[bytes], None]) -> Coroutine[Any, Any, None]:
        """Pass the rest of the body to `sink`, each piece when it arrives, and return at its end.

        For callers that need exact arrival times: a reading task is woken later. `sink` blocks the event
        loop, so it must be quick; what it raises counts as a broken reply.
        """
        return self._live.read_into(_Sink(sink))

    def read_into(self, reader: Reader) -> Coroutine[Any, Any, None]:
        """Pass the rest of the body to `reader`, one call per socket read, and return at its end."""
        return self._live.read_into(reader)

    def pause(self) -> None:
        """Stop reading from the worker because the sink is full. What was read already still arrives."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Continue reading after `pause`, unless the reply has ended."""
        if self._connection is not None:
            self._connection.resume()

    def end(self) -> None:
        """Return the connection; with an unread body it is closed, so that the server stops generating."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._client._give_back(connection)

    @property
    def _live(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the reply has ended")
        return self._connection


class _Sink:
    """A reader that passes every piece of a body on to a function."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink

    def take(self, parts: Sequence[bytes]) -> None:
        try:
            for part in parts:
                self._sink(part)
        except Exception as error:
            raise UpstreamError(FailureKind.PROTOCOL, f"the reply cannot be read ({error})") from error

    def takes_chunk(self, data: bytes, start: int, end: int) -> bool:
        return False

    def pass_on(self, chunks: bytes) -> None:
        raise AssertionError("it accepts no chunk unread")


# --- Addresses as users type them.


def no_answer(url: str, error: UpstreamError) -> str:
    """That nothing answers there, and why."""
    return f"nothing answers at {url}: {error.message.removeprefix(url).strip()}"


_WITHOUT_SCHEME = re.compile(r"[\w.\[\]:-]*[\w\]]:\d+(/.*)?", re.ASCII)


def is_address(text: str) -> bool:
    """Whether the text is meant as an address: it has a scheme, or is host:port."""
    return "://" in text or _WITHOUT_SCHEME.fullmatch(text) is not None


def origin(url: str) -> str:
    """The address without the /v1 that users of OpenAI's client library add; http:// where only host:port was
    typed.
    """
    with_scheme = f"http://{url}" if "://" not in url and is_address(url) else url
    return with_scheme.rstrip("/").removesuffix("/v1")
