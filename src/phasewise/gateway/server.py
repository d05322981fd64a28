"""Runs the gateway's application in this process until a signal ends it. Building it is app.py's."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType

import uvicorn

from phasewise.config import GatewayFile
from phasewise.gateway.app import GatewayApp, build_app
from phasewise.gateway.connection import ClientConnection

STREAMS_MAY_FINISH_S = 30
BACKLOG = 4096


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
        http=ClientConnection,
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


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(0)
