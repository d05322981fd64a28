"""One process of a gateway: its supervisor starts `python -m phasewise.gateway.processes.child ORDER`."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import orjson

from phasewise.core.errors import ConfigError, PhasewiseError
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
from phasewise.gateway.records.logs import set_up_logging
from phasewise.gateway.serve import GatewayServer, server_config

COLLECT_AFTER = (700, 10, 1000)
"""Python's defaults except the last: a full collection is due after a thousand smaller ones, not after
ten."""
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
    # Objects built so far live until the end, so the collector skips them. It rarely scans thousands of open
    # streams, which stalls all of them for tens of milliseconds: requests leave no reference cycles.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)

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


if __name__ == "__main__":
    main()
