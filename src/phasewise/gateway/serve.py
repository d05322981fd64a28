"""Runs the gateway's application in this process until a signal ends it."""

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
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType

import uvicorn

from phasewise.clients.host import allow_many_streams
from phasewise.core.errors import ConfigError
from phasewise.core.units import counted
from phasewise.fleet.config import GatewayConfig, GatewayFile
from phasewise.fleet.local.gateway_run import FOLDER_PREFIX, GatewayRun, gateway_url, living_gateways
from phasewise.fleet.local.run_files import write_private
from phasewise.gateway.app import GatewayApp, build_app
from phasewise.gateway.processes.board import Board, create_board
from phasewise.gateway.processes.membership import Membership
from phasewise.gateway.processes.siblings import Question
from phasewise.gateway.processes.supervisor import Place, Supervisor, listen
from phasewise.gateway.processes.take_over import TakenOver, ask_for_listeners
from phasewise.gateway.records.logs import set_up_logging, set_up_logging_without_threads
from phasewise.gateway.server.certificate import certificate_of
from phasewise.gateway.server.edge import Edge, EdgeConnection

logger = logging.getLogger("phasewise.gateway")

BACKLOG = 4096
LOOK_EVERY_S = 0.05
IDLE_S = 1.0
"""A connection that is idle at a stop may send one request more in this time: it may be under way."""
COLLECT_AFTER = (700, 10, 1000)
"""Python's defaults except the last: a full collection is due after a thousand smaller ones, not after
ten."""


def serve(
    read: Callable[[], GatewayFile],
    path: Path | None = None,
    home: Path | None = None,
    *,
    first: GatewayFile | None = None,
    take_over: bool = False,
    picker_port: int | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, let running streams finish, and return.

    `read` gives the configuration at each SIGHUP, and now unless it has given `first`; `path` is the file
    that it reads. The gateway is recorded under `home`, if there is one, while it serves. With `take_over` it
    continues where the one that runs at the same address leaves. With `picker_port` it places requests for
    Envoy too.
    """
    file = first or read()
    config = file.gateway
    before = _before(config, home) if take_over else None
    folder = _own_folder() if before is None else before.folder
    record = None if home is None else GatewayRun(home, config, folder)
    allow_many_streams()
    own_pid = os.getpid()
    try:
        if record is not None:
            with suppress(OSError):
                record.write(())  # whichever process serves first, commands find it
        serve_one = partial(_serve_here, file, read, path, record, picker_port)
        if config.processes == 1:
            board_fd = create_board() if before is None else before.board_fd
            column = Board(board_fd).free_column() or 0
            turn = None if before is None else before.turn
            listeners = _listeners(config, before)[0]
            serve_one(Place(0, column, listeners, board_fd, folder, _columns(before), turn=turn))
        else:
            _serve_together(file, before, folder, serve_one)
    finally:
        if os.getpid() == own_pid:  # not in a process that was forked
            if record is not None:
                record.remove()
            if not any(folder.glob("process-*")):
                shutil.rmtree(folder, ignore_errors=True)


def _in_force(folder: Path, supervisor: int) -> Path:
    """Where the configuration is that the processes of this supervisor have."""
    return folder / f"configuration-{supervisor}"


def _keep(path: Path, file: GatewayFile) -> None:
    write_private(path, file.model_dump_json().encode())


def _own_folder() -> Path:
    """Where this gateway's sockets are; only its user can enter it."""
    try:
        return Path(mkdtemp(prefix=FOLDER_PREFIX))
    except OSError as error:
        raise ConfigError(
            f"no folder for the gateway's sockets can be made ({error.strerror or error})",
            hint="give it a /tmp that it can write to, in a container a tmpfs",
        ) from error


def _before(config: GatewayConfig, home: Path | None) -> TakenOver:
    """What the gateway that runs at the same address gives."""
    url = gateway_url(config)
    found = [it for it in living_gateways(home) if it.url == url and it.folder] if home is not None else []
    if not found:
        raise ConfigError(
            f"no gateway of yours runs at {url}",
            hint="leave out --take-over; one that was started by another user, with another PHASEWISE_HOME "
            "or with other TLS can only be stopped first",
        )
    return ask_for_listeners(Path(found[-1].folder), url)


def _columns(before: TakenOver | None) -> tuple[int, ...]:
    return () if before is None else tuple(before.listeners)


def _listeners(config: GatewayConfig, before: TakenOver | None) -> list[tuple[socket.socket, ...]]:
    """Those of each process. Of those that were taken over none is closed: connections may wait there."""
    each: list[list[socket.socket]] = [[] for _ in range(config.processes)]
    for number, held in enumerate(() if before is None else before.listeners.values()):
        each[number % config.processes] += held
    return [tuple(it) or listen(config.host, config.port, BACKLOG) for it in each]


def _serve_together(
    file: GatewayFile, before: TakenOver | None, folder: Path, serve_one: Callable[[Place], None]
) -> None:
    """Serve in several processes, each with a listener of its own for the same address."""
    set_up_logging_without_threads(file.gateway.log)
    board_fd = create_board() if before is None else before.board_fd
    listeners = _listeners(file.gateway, before)
    turn = None if before is None else before.turn
    in_force = _in_force(folder, os.getpid())
    _keep(in_force, file)
    code = Supervisor(listeners, board_fd, folder, serve_one, _columns(before), turn).run()
    in_force.unlink(missing_ok=True)
    if code:
        sys.exit(code)


def _serve_here(
    file: GatewayFile,
    read: Callable[[], GatewayFile],
    path: Path | None,
    record: GatewayRun | None,
    picker_port: int | None,
    place: Place,
) -> None:
    """Serve in this process, in its place among others.

    All of them have the same configuration, those too that are started later: the file may have changed.
    """
    in_force = _in_force(place.folder, os.getppid())
    is_alone = place.lifeline is None
    if not is_alone:
        file = GatewayFile.model_validate_json(in_force.read_bytes())
    # uvicorn raises the signal again after a clean shutdown; the process then just exits.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    log = set_up_logging(file.gateway.log)
    membership = Membership(place)
    app = build_app(file, log_dropped=lambda: log.dropped, membership=membership)
    config = server_config(file, app)
    if picker_port is not None:
        app.pick_endpoints(file.gateway, picker_port)
    keep = None if is_alone else partial(_keep, in_force)
    app.allow_reload(file, read, path, keep)
    if place.number == 0:
        app.run_record = record
    signal.signal(signal.SIGHUP, lambda _number, _frame: app.ask_for_reload())
    # Objects built so far live until the end, so the collector skips them. It rarely scans thousands of open
    # streams, which stalls all of them for tens of milliseconds: requests leave no reference cycles.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:

        def begin() -> None:
            membership.serves()
            app.gateway.pipeline.start()

        server = GatewayServer(config, app.edge, begin)

        async def leave(_question: Question) -> bytes:
            membership.leave()
            app.forget_record()
            server.leave()
            return b""

        membership.siblings.answers["leave"] = leave
        server.run(list(place.listeners))
    except SystemExit:
        # uvicorn exits this way if the application did not start.
        if app.start_error is None:
            raise
        raise app.start_error from None


class GatewayServer(uvicorn.Server):
    """A server that exits at once on a second SIGINT or SIGTERM, and logs what it waits for until then.

    `on_serving` is called when it accepts connections.
    """

    def __init__(
        self, config: uvicorn.Config, edge: Edge, on_serving: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._edge = edge
        self._on_serving = on_serving

    def leave(self) -> None:
        """Another gateway takes over: finish what was begun, and answer idle connections once more."""
        logger.info("another gateway takes over")
        self._edge.leaving = self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        if not self.should_exit:
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
            for listener in sockets or []:
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
        app.certificate.attach(config.ssl)
    return config


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(0)
