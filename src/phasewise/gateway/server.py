"""Runs the gateway's application in this process until a signal ends it. Building it is app.py's."""

from __future__ import annotations

import gc
import math
import signal
import ssl
import sys
from functools import partial
from types import FrameType

import uvicorn

from phasewise.adapters.open_files import allow_many_streams
from phasewise.config import GatewayFile, TlsConfig
from phasewise.errors import ConfigError
from phasewise.gateway.app import GatewayApp, build_app
from phasewise.gateway.edge import EdgeConnection
from phasewise.gateway.logs import set_up_logging

KEEP_ALIVE_S = 75
BACKLOG = 4096
COLLECT_AFTER = (700, 10, 1000)
"""Python's own but for the last: a full collection is due after a thousand smaller ones, not after ten."""


def serve(file: GatewayFile) -> None:
    """Serve until SIGINT or SIGTERM, let running streams finish, and return."""
    # uvicorn raises the signal again after a clean end; by then it means nothing but "leave".
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    set_up_logging(file.gateway.log)
    allow_many_streams()
    app = build_app(file)
    config = server_config(file, app)
    # What was built by now stays until the end: the collector need not look at it again and again. Nor, but
    # rarely, at thousands of open streams, which takes tens of milliseconds while all of them stand still:
    # requests leave nothing behind that refers to itself.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        GatewayServer(config).run()
    except SystemExit:
        # How the server says that the application did not start.
        if app.start_error is None:
            raise
        raise app.start_error from None


class GatewayServer(uvicorn.Server):
    """A server that a second signal ends at once, whichever of the two it is."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal."""
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)


def server_config(file: GatewayFile, app: GatewayApp) -> uvicorn.Config:
    """How the gateway wants to be served."""
    tls = file.gateway.tls
    if tls is not None:
        _check_certificate(tls)
    return uvicorn.Config(
        app,
        host=file.gateway.host,
        port=file.gateway.port,
        interface="asgi3",
        loop="uvloop",
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


def _check_certificate(tls: TlsConfig) -> None:
    """Fail now, and in words, where the server would fail later."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        reason = error.strerror or "they do not make a certificate and its key"
        # Somebody may have put the key itself where its file belongs.
        pasted = "\n" in tls.certificate + tls.key
        which = "what should be two paths" if pasted else f"{tls.certificate} and {tls.key}"
        raise ConfigError(
            f"gateway.tls: {which} cannot be used ({reason})",
            hint="give two PEM files: the certificate with its chain, and its key without a password",
        ) from None


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(0)
