"""A small proxy before one engine, served on loopback in the caller's event loop.

Generating is answered by a handler that takes something away from the engine; what is only asked of it
passes through. What is taken away is the handlers' to say.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import uvicorn

from phasewise.adapters.http_client import HttpClient
from phasewise.errors import RefusalKind, RequestRefused, UpstreamError
from phasewise.gateway.asgi import Client, ClientLeft, Headers, Receive, Scope, Send, client_of
from phasewise.gateway.http_errors import error_body, send_error, send_refusal
from phasewise.model.decision import RejectReason

PASSED_THROUGH = frozenset({"/v1/models", "/tokenize", "/metrics", "/health", "/version"})
SENT_ON = frozenset({b"content-type", b"accept", b"authorization", b"x-request-id"})
OF_ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"date", b"server"}
)
"""Headers of the engine's reply that our own server writes anew."""
GOODBYE_S = 1
"""Connections are cut at the end; what has not noticed by then is cancelled."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that has come in whole, and whom to answer."""

    scope: Scope
    client: Client
    body: bytes

    @property
    def headers(self) -> Headers:
        """The headers that the engine is to see too."""
        return [(name, value) for name, value in self.scope["headers"] if name in SENT_ON]

    @property
    def path(self) -> str:
        """Where it was sent, with its query."""
        query = self.scope["query_string"].decode()
        return f"{self.scope['path']}?{query}" if query else str(self.scope["path"])


Handler = Callable[[Asked], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RestrainedApp:
    """The application: `generate` says how each generating address is answered."""

    engine: HttpClient
    generate: Mapping[str, Handler]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever goes wrong, the client is told if it is still there."""
        client = client_of(scope, receive, send)
        try:
            await self._answer(scope, client)
        except RequestRefused as refusal:
            await send_refusal(client, refusal)
        except UpstreamError as error:
            await _tell(client, error)
        except ClientLeft:
            return
        except asyncio.CancelledError:
            if not client.gone:
                raise
        finally:
            client.unwatch()

    async def _answer(self, scope: Scope, client: Client) -> None:
        asked = Asked(scope, client, await client.read_body())
        client.watch()
        handler = self.generate.get(scope["path"])
        if handler is not None:
            await handler(asked)
        elif scope["path"] in PASSED_THROUGH:
            await pass_through(self.engine, asked)
        else:
            raise RequestRefused(RefusalKind.NOT_FOUND, "this stand-in for an engine has no such address")


async def pass_through(engine: HttpClient, asked: Asked) -> None:
    """Ask the engine the same, and hand its answer on as it comes."""
    reply = await engine.send(asked.scope["method"], asked.path, headers=asked.headers, body=asked.body)
    async with reply:
        head = [(name, value) for name, value in reply.headers if name not in OF_ONE_CONNECTION]
        await asked.client.start(reply.status, head)
        while data := await reply.read():
            await asked.client.send_part(data)
    await asked.client.finish()


async def _tell(client: Client, error: UpstreamError) -> None:
    if client.started:
        body = error_body(error.message, "upstream_error", code=f"stream_{error.kind}")
        await client.finish(b"data: " + body + b"\n\n")
    else:
        await send_error(client, RejectReason.ALL_ATTEMPTS_FAILED, error.message)


@asynccontextmanager
async def on_loopback(app: RestrainedApp) -> AsyncIterator[str]:
    """Serve at the yielded address; at the end every connection is cut and every task has ended."""
    # asyncio turns Nagle's algorithm off only where TCP is named; with it a chunk can be 40 ms late.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        # From here on connections are taken in, though the server answers them a moment later.
        listening.listen()
        server = _Server(_config(app))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            for connection in tuple(server.server_state.connections):
                connection.transport.abort()
            await serving


def _config(app: RestrainedApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GOODBYE_S,
    )


class _Server(uvicorn.Server):
    """A server inside somebody's event loop: signals are for whoever owns that."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
