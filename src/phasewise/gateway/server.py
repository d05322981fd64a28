"""Runs the gateway's application in this process until a signal ends it. Building it is app.py's."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from phasewise.config import GatewayFile
from phasewise.gateway.app import GatewayApp, build_app
from phasewise.gateway.asgi import DROP

STREAMS_MAY_FINISH_S = 30
BACKLOG = 4096
WRITE_BUFFER_BYTES = 16 * 1024
"""More than this that the kernel does not take makes a stream wait: half a second of the fastest streams."""
UNSENT_BYTES = 16 * 1024
"""The kernel takes no more than this beyond what is on its way to the client. What is on its way stays free:
a client far away is served as fast as ever, while one that does not read is soon noticed."""


def serve(file: GatewayFile) -> None:
    """Serve until SIGINT or SIGTERM, let running streams finish, and return."""
    # uvicorn raises the signal again after a clean end; by then it means nothing but "leave".
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    config = server_config(file, build_app(file))
    # What was built by now stays until the end: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    uvicorn.Server(config).run()


def server_config(file: GatewayFile, app: GatewayApp) -> uvicorn.Config:
    """How the gateway wants to be served."""
    return uvicorn.Config(
        app,
        host=file.gateway.host,
        port=file.gateway.port,
        interface="asgi3",
        loop="uvloop",
        http=_Connection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STREAMS_MAY_FINISH_S,
    )


class _Connection(HttpToolsProtocol):
    """A client's connection that the application can cut, and that soon tells of a client that does not read.

    An ordinary close waits until everything is sent, which never is to a client that does not read.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if sys.platform != "win32":
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {DROP: {"now": self.transport.abort}}


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(0)
