"""The private record of each running gateway of this user, also of those that no fleet started.

The gateway's process writes it, and removes it at its end; `phasewise status` reads it without any key.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from phasewise.core.worker import Role
from phasewise.fleet.config import GatewayConfig
from phasewise.fleet.config.gateway import Frozen
from phasewise.fleet.local.process import boot_id, identity_of, is_alive
from phasewise.fleet.local.run_files import run_folder, write_private
from phasewise.fleet.local.state import FleetState, ProcessIdentity

_SUFFIX = ".gateway-run"
FOLDER_PREFIX = "phasewise-"
"""What the names of folders with the sockets of a gateway's processes begin with."""


class WorkerReport(Frozen):
    """A worker as its gateway sees it. `since_unix_s` is when its health last changed."""

    name: str
    url: str
    model: str
    role: Role
    pool: str
    health: str
    note: str
    since_unix_s: float | None
    circuit_open: bool
    incarnation: str
    steps_url: str | None

    @property
    def serves(self) -> bool:
        """Whether it gets requests as usual."""
        return self.health == "up" and not self.circuit_open


class GatewayState(Frozen):
    """A gateway at one moment, as its process last wrote it. `folder` has the sockets of its processes."""

    version: int = 1
    url: str
    boot_id: str
    process: ProcessIdentity
    started_unix_s: float
    workers: tuple[WorkerReport, ...] = ()
    folder: str = ""


def gateway_url(config: GatewayConfig) -> str:
    """The address that a gateway listens on."""
    scheme, host = "http" if config.tls is None else "https", config.host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.port}"


def picker_address(config: GatewayConfig, port: int) -> str:
    """Where a gateway's endpoint picker listens, as gRPC names it."""
    return gateway_url(config.model_copy(update={"port": port})).partition("://")[2]


class GatewayRun:
    """The record of a gateway; `pid` is its supervisor, by default this process."""

    def __init__(
        self, home: Path, config: GatewayConfig, folder: Path | None = None, pid: int | None = None
    ) -> None:
        self._path = run_folder(home) / f"{pid or os.getpid()}{_SUFFIX}"
        process = identity_of(pid or os.getpid())
        self._state = process and GatewayState(
            url=gateway_url(config),
            boot_id=boot_id(),
            process=process,
            started_unix_s=time.time(),
            folder="" if folder is None else str(folder),
        )

    def write(self, workers: tuple[WorkerReport, ...]) -> None:
        """Record the workers' states; OSError if the folder cannot be written."""
        if self._state is not None:
            state = self._state.model_copy(update={"workers": workers})
            write_private(self._path, state.model_dump_json(indent=1).encode())

    def remove(self) -> None:
        """The gateway ends."""
        self._path.unlink(missing_ok=True)


def living_gateways(home: Path) -> list[GatewayState]:
    """The gateways that run now. Records and folders that killed ones left behind are removed."""
    found: list[GatewayState] = []
    left: set[str] = set()
    for path in sorted(run_folder(home).glob(f"[!.]*{_SUFFIX}")):
        try:
            state = GatewayState.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            continue  # it ended just now, or another version wrote it
        if state.boot_id == boot_id() and is_alive(state.process):
            found.append(state)
        else:
            path.unlink(missing_ok=True)
            left.add(state.folder)
    for folder in map(Path, left - {state.folder for state in found}):
        if folder.name.startswith(FOLDER_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
    return found


def lone_gateways(gateways: Iterable[GatewayState], fleets: Iterable[FleetState]) -> list[GatewayState]:
    """Those that no fleet started."""
    of_fleets = {fleet.gateway.process for fleet in fleets}
    return [gateway for gateway in gateways if gateway.process not in of_fleets]
