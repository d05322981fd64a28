"""One process of a gateway: its supervisor starts `python -m phasewise.gateway.processes.child ORDER`.

Its server serves until a signal ends it, or its successor serves.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import orjson
import uvicorn
from uvicorn.server import ServerState

from phasewise.core.errors import ConfigError, PhasewiseError
from phasewise.core.units import counted
from phasewise.fleet.config import GatewayFile
from phasewise.fleet.local.gateway_run import GatewayRun
from phasewise.fleet.local.run_files import write_private
from phasewise.gateway.app import GatewayApp, build_app
from phasewise.gateway.processes.order import (
    ProcessOrder,
    error_file,
    in_force_file,
    secret_file,
    socket_file,
)
from phasewise.gateway.processes.peers import Peers
from phasewise.gateway.processes.supervisor import BACKLOG
from phasewise.gateway.records.logs import set_up_logging
from phasewise.gateway.server.edge import AdminConnection, Edge, EdgeConnection
from phasewise.gateway.settings import certificate_of

logger = logging.getLogger("phasewise.gateway")

COLLECT_AFTER = (700, 10, 1000)
"""Python's defaults except the last: a full collection is due after a thousand smaller ones, not after
ten."""
LOOK_EVERY_S = 0.05
IDLE_S = 1.0
"""A connection that is idle at a stop may send one request more in this time: it may be under way."""
FIXED = ("host", "port", "processes")
"""What the supervisor goes by, which is not replaced."""


def main() -> None:
    """Serve. An error that a configuration causes is left for the supervisor."""
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # uvicorn raises the signal again after a clean shutdown; the process then just exits.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    order = ProcessOrder.read(Path(sys.argv[1]))
    try:
        serve_as_ordered(order)
    except PhasewiseError as error:
        said = orjson.dumps([error.message, error.hint])
        write_private(error_file(Path(order.folder), order.process), said)
        sys.exit(2)


def serve_as_ordered(order: ProcessOrder) -> None:
    """Serve until a signal ends the process, or until its successor serves."""
    folder = Path(order.folder)
    in_force = in_force_file(folder).read_bytes()
    file = GatewayFile.model_validate_json(in_force)
    if order.reads_source:
        file = _changed(file, order.source.read())
    app = _app(order, file)
    config = server_config(file, app)
    reloader = app.allow_reload(file, order.source.read, order.source.watched, in_force_file(folder))
    collect_rarely()

    for descriptor in (*order.listeners, order.lifeline, order.reports):
        os.set_inheritable(descriptor, False)

    def begin() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(order.lifeline, _end_without_supervisor, folder)
        signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(app.begin_reload))
        signal.signal(signal.SIGUSR2, lambda *_: loop.call_soon_threadsafe(leave))
        if order.reads_source:
            reloader.put_in_force()
        elif in_force_file(folder).read_bytes() != in_force:
            app.begin_reload(in_force=True)  # it changed while this process started
        app.gateway.pipeline.start()
        os.write(order.reports, b"%d\n" % order.process)

    def leave() -> None:
        app.run_record = None
        server.leave()

    server = GatewayServer(
        config,
        app.edge,
        begin,
        socket_file(folder, order.process),
        keeps_listening=order.keeps_listening,
    )
    try:
        server.run([socket.socket(fileno=descriptor) for descriptor in order.listeners])
    except SystemExit:
        # uvicorn exits this way if the application did not start.
        if app.start_error is None:
            raise
        raise app.start_error from None


def collect_rarely() -> None:
    """Let the garbage collector skip what was built so far, which lives until the end, and rarely scan
    thousands of open streams, which stalls all of them: requests leave no reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _app(order: ProcessOrder, file: GatewayFile) -> GatewayApp:
    log = set_up_logging(file.gateway.log)
    folder = Path(order.folder)
    peers = Peers(folder, order.process, order.number, secret_file(folder).read_bytes())
    app = build_app(file, log_dropped=lambda: log.dropped, peers=peers)
    app.successor_of = order.successor_of
    if order.picker_port is not None:
        app.pick_endpoints(file.gateway, order.picker_port)
    if order.number == 0 and order.home is not None:
        app.run_record = GatewayRun(Path(order.home), file.gateway, folder, os.getppid())
    return app


def _end_without_supervisor(folder: Path) -> None:
    """It was killed, and has left its folder behind."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _changed(before: GatewayFile, file: GatewayFile) -> GatewayFile:
    """Raises ConfigError if it needs another supervisor."""
    fixed = [name for name in FIXED if getattr(before.gateway, name) != getattr(file.gateway, name)]
    if fixed:
        names = " and ".join(f"gateway.{name}" for name in fixed)
        raise ConfigError(
            f"a change of {names} needs a new start",
            hint="stop the gateway and start it again, or change it back",
        )
    return file


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


if __name__ == "__main__":
    main()
