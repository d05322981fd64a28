"""The server of one process of a gateway: it serves until a signal ends it, or its successor serves."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.server import ServerState

from phasewise.core.units import counted
from phasewise.fleet.config import GatewayFile
from phasewise.gateway.app import GatewayApp
from phasewise.gateway.processes.supervisor import BACKLOG
from phasewise.gateway.server.edge import AdminConnection, Edge, EdgeConnection
from phasewise.gateway.settings import certificate_of

logger = logging.getLogger("phasewise.gateway")

LOOK_EVERY_S = 0.05
IDLE_S = 1.0
"""A connection that is idle at a stop may send one request more in this time: it may be under way."""


class GatewayServer(uvicorn.Server):
    """A server that exits at once on a second SIGINT or SIGTERM, and logs what it waits for until then.

    It answers at `admin_socket` too, until all else has ended. `on_serving` is called when it accepts
    connections. With `keeps_listening`, others go on listening when it stops.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        edge: Edge,
        on_serving: Callable[[], None] = lambda: None,
        admin_socket: Path | None = None,
        *,
        keeps_listening: bool = False,
    ) -> None:
        super().__init__(config)
        self._edge = edge
        self._on_serving = on_serving
        self._admin_socket = admin_socket
        self._keeps_listening = keeps_listening
        self._admin: asyncio.Server | None = None

    def leave(self) -> None:
        """A successor serves: finish what was begun, and answer idle connections once more."""
        logger.info("a successor serves: this process finishes what it has begun")
        self._edge.leaving = self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        if self.should_exit:
            return
        if self._admin_socket is not None:
            loop = asyncio.get_running_loop()
            # Its connections are not among those that are waited for at the end.
            state = ServerState()
            connect = partial(AdminConnection, self.config, state, {}, loop, edge=self._edge)
            self._admin = await loop.create_unix_server(connect, str(self._admin_socket))
        self._on_serving()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests finish, and answer what idle connections send in a moment more."""
        drain_s = self.config.timeout_graceful_shutdown or 0
        until_s = time.monotonic() + drain_s
        idle_until_s = until_s if self._edge.leaving else time.monotonic() + min(IDLE_S, drain_s / 2)
        if still := len(self.server_state.tasks):
            logger.info(
                "stopping: waits up to %s s for %s to finish; a second signal ends at once",
                drain_s,
                counted(still, "request"),
            )
        if not self._edge.leaving:
            self._edge.leaving = True
            # Nobody else can connect; those who have are accepted.
            for listener in () if self._keeps_listening else sockets or ():
                listener.listen(0)
            await asyncio.sleep(LOOK_EVERY_S)
        for server in self.servers:
            server.close()
        while self.server_state.connections and time.monotonic() < idle_until_s:
            if self.force_exit:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        # Whoever is left has had its time.
        self.config.timeout_graceful_shutdown = math.ceil(max(1.0, until_s - time.monotonic()))
        await super().shutdown(sockets)
        if self._admin is not None:
            self._admin.close()
        left = len(self.server_state.tasks)
        logger.info("stopped%s", f" with {counted(left, 'request')} unfinished" if left else "")


def server_config(file: GatewayFile, app: GatewayApp) -> uvicorn.Config:
    """The uvicorn configuration of the gateway."""
    tls = file.gateway.tls
    if tls is not None:
        certificate_of(tls)
    config = uvicorn.Config(
        app,
        host=file.gateway.host,
        port=file.gateway.port,
        interface="asgi3",
        loop="auto",
        http=partial(EdgeConnection, edge=app.edge),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=math.ceil(file.gateway.drain_s),
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.sni_callback = app.edge.show_certificate
    return config
