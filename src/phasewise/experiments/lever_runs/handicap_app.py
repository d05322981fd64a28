"""A small proxy in front of one engine, served on loopback in the caller's event loop.

A handler answers generating requests and takes something away from the engine; all other requests pass
through.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import uvicorn

from phasewise.clients.http_client import HttpClient
from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind, RequestRejected, UpstreamError
from phasewise.gateway.http_errors import error_body, send_error, send_rejection
from phasewise.gateway.server.client import Client, ClientLeft, Direct, Headers, Scope, client_of
from phasewise.gateway.server.connection import ClientConnection

PASSED_THROUGH = frozenset({"/v1/models", "/tokenize", "/metrics", "/health", "/version"})
SENT_ON = frozenset({b"content-type", b"accept", b"authorization", b"x-request-id"})
OF_ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"date", b"server"}
)
"""Headers of the engine's reply that our own server writes itself."""
GOODBYE_S = 1
"""Connections are closed at the end; tasks that have not ended by then are cancelled."""


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """One request that has arrived completely, and the client to answer."""

    scope: Scope
    client: Client
    body: bytes

    @property
    def headers(self) -> Headers:
        """The headers to forward to the engine."""
        return [(name, value) for name, value in self.scope["headers"] if name in SENT_ON]

    @property
    def path(self) -> str:
        """Its path, with the query."""
        query = self.scope["query_string"].decode()
        return f"{self.scope['path']}?{query}" if query else str(self.scope["path"])


Handler = Callable[[HeldRequest], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HandicapApp:
    """The application: `generate` has the handler of each generating path."""

    engine: HttpClient
    generate: Mapping[str, Handler]

    async def serve(self, scope: Scope, direct: Direct) -> None:
        """Answer one request; if that fails, the client gets an error as long as it is connected."""
        client = client_of(direct)
        try:
            await self._answer(scope, client)
        except RequestRejected as rejection:
            await send_rejection(client, rejection)
        except UpstreamError as error:
            await _notify(client, error)
        except ClientLeft:
            return
        except asyncio.CancelledError:
            if not client.gone:
                raise
        finally:
            client.unwatch()

    async def _answer(self, scope: Scope, client: Client) -> None:
        asked = HeldRequest(scope, client, await client.read_body())
        client.watch()
        handler = self.generate.get(scope["path"])
        if handler is not None:
            await handler(asked)
        elif scope["path"] in PASSED_THROUGH:
            await pass_through(self.engine, asked)
        else:
            raise RequestRejected(RejectionKind.NOT_FOUND, "this proxy of an engine has no such path")


async def pass_through(engine: HttpClient, asked: HeldRequest) -> None:
    """Send the engine the same request, and forward its answer as it arrives."""
    reply = await engine.send(asked.scope["method"], asked.path, headers=asked.headers, body=asked.body)
    async with reply:
        head = [(name, value) for name, value in reply.headers if name not in OF_ONE_CONNECTION]
        await asked.client.start(reply.status, head)
        while data := await reply.read():
            await asked.client.send_part(data)
    await asked.client.finish()


async def _notify(client: Client, error: UpstreamError) -> None:
    if client.started:
        body = error_body(error.message, "upstream_error", code=f"stream_{error.kind}")
        await client.finish(b"data: " + body + b"\n\n")
    else:
        await send_error(client, RejectReason.ALL_ATTEMPTS_FAILED, error.message)


@asynccontextmanager
async def on_loopback(app: HandicapApp) -> AsyncIterator[str]:
    """Serve at the yielded address; at the end every connection is closed and every task has ended."""
    # asyncio turns Nagle's algorithm off only if TCP is named; with it a chunk can be 40 ms late.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        # From here on the socket accepts connections; the server answers them a moment later.
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


def _config(app: HandicapApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type] # connections call its `serve`
        interface="asgi3",
        http=ClientConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GOODBYE_S,
    )


class _Server(uvicorn.Server):
    """A server inside another event loop, whose owner handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
