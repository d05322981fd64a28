"""Runs the gateway's application in this process until a signal ends it."""

from __future__ import annotations

import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from phasewise.clients.host import allow_many_streams
from phasewise.core.units import counted
from phasewise.fleet.config import GatewayFile
from phasewise.fleet.local.gateway_run import GatewayRun
from phasewise.gateway.app import GatewayApp, build_app
from phasewise.gateway.records.logs import set_up_logging
from phasewise.gateway.server.certificate import certificate_of
from phasewise.gateway.server.edge import EdgeConnection

logger = logging.getLogger("phasewise.gateway")

KEEP_ALIVE_S = 75
BACKLOG = 4096
COLLECT_AFTER = (700, 10, 1000)
"""Python's defaults except the last: a full collection is due after a thousand smaller ones, not after
ten."""


def serve(read: Callable[[], GatewayFile], path: Path | None = None, home: Path | None = None) -> None:
    """Serve until SIGINT or SIGTERM, let running streams finish, and return.

    `read` gives the configuration, now and at each SIGHUP; `path` is the file that it reads. The gateway is
    recorded under `home`, if there is one, while it serves.
    """
    file = read()
    # uvicorn raises the signal again after a clean shutdown; the process then just exits.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    log = set_up_logging(file.gateway.log)
    allow_many_streams()
    app = build_app(file, log_dropped=lambda: log.dropped)
    config = server_config(file, app)
    app.allow_reload(file, read, path)
    app.run_record = None if home is None else GatewayRun(home, file.gateway)
    signal.signal(signal.SIGHUP, lambda _number, _frame: app.ask_for_reload())
    # Objects built so far live until the end, so the collector skips them. It rarely scans thousands of open
    # streams, which stalls all of them for tens of milliseconds: requests leave no reference cycles.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        GatewayServer(config).run()
    except SystemExit:
        # uvicorn exits this way if the application did not start.
        if app.start_error is None:
            raise
        raise app.start_error from None
    finally:
        if app.run_record is not None:
            app.run_record.remove()


class GatewayServer(uvicorn.Server):
    """A server that exits at once on a second SIGINT or SIGTERM, and logs what it waits for until then."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests finish."""
        if still := len(self.server_state.tasks):
            logger.info(
                "stopping: waits up to %s s for %s to finish; a second signal ends at once",
                self.config.timeout_graceful_shutdown,
                counted(still, "request"),
            )
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
        timeout_keep_alive=KEEP_ALIVE_S,
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
