"""Starts a gateway (its private folder, listeners, record and supervisor), and lets one that runs restart."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import orjson

from phasewise.clients.host import allow_many_streams
from phasewise.core.errors import ConfigError
from phasewise.fleet.config import GatewayFile
from phasewise.fleet.local.gateway_run import FOLDER_PREFIX, GatewayRun, GatewayState
from phasewise.fleet.local.process import is_alive
from phasewise.fleet.local.run_files import write_private
from phasewise.gateway.processes.order import (
    GatewaySource,
    ProcessOrder,
    RestartProgress,
    in_force_file,
    progress_file,
    secret_file,
)
from phasewise.gateway.processes.supervisor import ProcessSupervisor, listen, passed_listeners
from phasewise.gateway.records.logs import set_up_logging_without_threads

SECRET_BYTES = 32
LOOK_EVERY_S = 0.05


def start_gateway(
    file: GatewayFile, source: GatewaySource, home: Path | None, picker_port: int | None
) -> None:
    """Serve until SIGINT or SIGTERM, let running streams finish, and return.

    `file` is what `source` holds now. The gateway is recorded under `home`, if there is one, while it serves.
    With `picker_port` it places requests for Envoy too.
    """
    config = file.gateway
    folder = _own_folder()
    record = None if home is None else GatewayRun(home, config, folder)
    try:
        passed = passed_listeners(os.environ)
        each = range(config.processes)
        listeners = [passed or listen(config.host, config.port) for _ in each]
        allow_many_streams()
        set_up_logging_without_threads(config.log)
        write_private(in_force_file(folder), file.model_dump_json().encode())
        write_private(secret_file(folder), secrets.token_bytes(SECRET_BYTES))
        if record is not None:
            with suppress(OSError):
                record.write(())  # whichever process serves first, commands find it
        order = ProcessOrder(
            folder=str(folder),
            source=source,
            keeps_listening=bool(passed),
            home=None if home is None else str(home),
            picker_port=picker_port,
        )
        code = ProcessSupervisor(listeners, order).run()
    finally:
        if record is not None:
            record.remove()
        shutil.rmtree(folder, ignore_errors=True)
    if code:
        sys.exit(code)


def _own_folder() -> Path:
    """Only its user can enter it."""
    try:
        return Path(mkdtemp(prefix=FOLDER_PREFIX))
    except OSError as error:
        raise ConfigError(
            f"no folder for the gateway's sockets can be made ({error.strerror or error})",
            hint="give it a /tmp that it can write to, in a container a tmpfs",
        ) from error


def restart_gateway(gateway: GatewayState, on_progress: Callable[[RestartProgress], None]) -> None:
    """Replace its processes by ones with the code and the file that are on disk now, and return then.

    Raises ConfigError if one cannot be replaced: it serves as before.
    """
    folder = Path(gateway.folder)
    before = _progress(folder)
    seen = before
    os.kill(gateway.process.pid, signal.SIGUSR2)
    while is_alive(gateway.process):
        progress = _progress(folder)
        if progress.asked > before.asked and progress != seen:
            seen = progress
            on_progress(progress)
            if progress.error:
                raise ConfigError(progress.error, hint="the gateway goes on as it was; its log says more")
            if progress.is_done:
                return
        time.sleep(LOOK_EVERY_S)
    raise ConfigError(f"the gateway at {gateway.url} has ended", hint="start it again; its log says why")


def _progress(folder: Path) -> RestartProgress:
    try:
        return RestartProgress(**orjson.loads(progress_file(folder).read_bytes()))
    except (OSError, ValueError):
        return RestartProgress()
