"""Serves recorded steps over HTTP as NDJSON, from a daemon thread inside the engine's front end."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from phasewise_engine_plugin import __version__
from phasewise_engine_plugin.ring import StepRing
from phasewise_engine_plugin.wire import header_line, step_line

logger = logging.getLogger("vllm.phasewise_engine_plugin")

DEFAULT_ENGINE_PORT = 8000
PORT_OFFSET = 10_000
# A batch of this many lines takes about half a millisecond to encode; the pause after it returns the
# interpreter to the front end's event loop, which streams tokens in the same process.
LINES_PER_BATCH = 64
PAUSE_BETWEEN_BATCHES_S = 0.0005
IDLE_CONNECTION_S = 60.0
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


class Asked(NamedTuple):
    """Which steps a reader wants: those numbered `since` and up that ended at or after `since_unix_s`."""

    since: int
    limit: int | None
    since_unix_s: float | None


def engine_port(argv: Sequence[str]) -> int:
    """The engine's own port as given on its command line (`--port N` or `--port=N`), else vLLM's default."""
    port = str(DEFAULT_ENGINE_PORT)
    for index, argument in enumerate(argv):
        if argument == "--port" and index + 1 < len(argv):
            port = argv[index + 1]
        elif argument.startswith("--port="):
            port = argument.partition("=")[2]
    return int(port) if port.isdecimal() else DEFAULT_ENGINE_PORT


def steps_address(environ: Mapping[str, str], argv: Sequence[str]) -> Address | None:
    """Where the steps are served, None when switched off; raises ValueError on an invalid address."""
    wanted = environ.get("PHASEWISE_STEPS_ADDR", "").strip()
    if wanted.lower() == "off":
        return None
    if not wanted:
        return _checked(Address("127.0.0.1", engine_port(argv) + PORT_OFFSET), "the engine's port + 10000")
    host, _, port = wanted.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"PHASEWISE_STEPS_ADDR={wanted!r} is not host:port")
    return _checked(Address(host.strip("[]"), int(port)), f"PHASEWISE_STEPS_ADDR={wanted!r}")


def _checked(address: Address, origin: str) -> Address:
    if address.port > 65_535:
        raise ValueError(f"{origin} is port {address.port}, above 65535")
    return address


def host_is_allowed(host_header: str | None, bound_host: str) -> bool:
    """Whether a request's Host header names this server, which rejects DNS rebinding by web pages.

    Bound to every interface, any literal address is accepted: only names can be rebound.
    """
    if not host_header:
        return False
    host = _without_port(host_header.strip().lower())
    if host in LOCAL_NAMES or host.strip("[]") == bound_host.lower():
        return True
    return bound_host in ("0.0.0.0", "::") and _is_literal(host.strip("[]"))  # noqa: S104 - compared, not bound


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class StepsServer:
    """The HTTP server of one ring; `start` never raises because of the network."""

    def __init__(self, ring: StepRing, engine: str, details: bool, address: Address) -> None:
        self.ring = ring
        self.engine = engine
        self.details = details
        self.address = address
        self.boot = secrets.token_hex(8)
        self._http: ThreadingHTTPServer | None = None

    def start(self) -> bool:
        """Listen and serve in the background; False (and one warning) when the port cannot be bound."""
        try:
            self._http = _SteppingHTTPServer(self)
        except OSError as error:
            logger.warning(
                "phasewise: steps are recorded but not served: %s:%d cannot be bound (%s). "
                "hint: set PHASEWISE_STEPS_ADDR=host:port",
                self.address.host,
                self.address.port,
                error.strerror or error,
            )
            return False
        self.address = Address(self.address.host, self._http.server_address[1])
        threading.Thread(target=self._http.serve_forever, name="phasewise-steps", daemon=True).start()
        logger.info("phasewise: engine steps at http://%s:%d/steps", self.address.host, self.address.port)
        return True

    def stop(self) -> None:
        """Stop listening; running replies end with the process."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def lines(self, asked: Asked) -> Iterator[bytes]:
        """A reply in pieces: the header first, then batches of step lines."""
        yield header_line(
            {
                "recorder": __version__,
                "engine": self.engine,
                "boot": self.boot,
                "pid": os.getpid(),
                "now_unix_s": time.time(),
                "oldest": self.ring.oldest_seq,
                "next": self.ring.next_seq,
                "details": self.details,
            }
        )
        first = asked.since
        if asked.since_unix_s is not None:
            first = max(first, self.ring.first_seq_at(asked.since_unix_s))
        steps = self.ring.since(first, self.ring.capacity if asked.limit is None else asked.limit)
        while batch := b"".join(step_line(seq, step) for seq, step in islice(steps, LINES_PER_BATCH)):
            yield batch
            time.sleep(PAUSE_BETWEEN_BATCHES_S)


class _SteppingHTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    # Otherwise closing would wait for pollers with open connections.
    block_on_close = False

    def __init__(self, steps: StepsServer) -> None:
        self.steps = steps
        self.address_family = socket.AF_INET6 if ":" in steps.address.host else socket.AF_INET
        super().__init__(steps.address, _Handler)

    def server_bind(self) -> None:
        # The parent's method looks up the host's name, which can hang for seconds without a resolver.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("phasewise: a reader of /steps disconnected", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _SteppingHTTPServer
    protocol_version = "HTTP/1.1"
    server_version = f"phasewise-engine-plugin/{__version__}"
    sys_version = ""
    timeout = IDLE_CONNECTION_S
    # Small pieces are sent at once: pollers wait for them.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if not host_is_allowed(self.headers.get("Host"), self.server.steps.address.host):
            self._reject(HTTPStatus.FORBIDDEN, "the Host header names another server")
            return
        url = urlsplit(self.path)
        if url.path != "/steps":
            self._reject(HTTPStatus.NOT_FOUND, "unknown path: this server has only /steps")
            return
        try:
            asked = _asked(url.query)
        except ValueError as error:
            self._reject(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._send_steps(asked)

    def _send_steps(self, asked: Asked) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in self.server.steps.lines(asked):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _reject(self, status: HTTPStatus, reason: str) -> None:
        body = header_line({"error": reason})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Log nothing: pollers would flood the engine's own log."""


def _asked(query: str) -> Asked:
    values = parse_qs(query)
    since, limit, since_unix_s = (values.get(name, [""])[-1] for name in ("since", "limit", "since_unix_s"))
    for name, text in (("since", since), ("limit", limit)):
        if text and not text.isdecimal():
            raise ValueError(f"{name} is not a whole number of 0 or more")
    return Asked(
        int(since or 0), int(limit) if limit else None, _time(since_unix_s) if since_unix_s else None
    )


def _time(text: str) -> float:
    try:
        unix_s = float(text)
    except ValueError:
        unix_s = -1.0
    # Written so that "nan" fails too.
    if not 0 <= unix_s < float("inf"):
        raise ValueError("since_unix_s is not a time in Unix seconds")
    return unix_s
