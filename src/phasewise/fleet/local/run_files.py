"""Stores the state of running fleets: one supervisor replaces it atomically, only its user can read it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from phasewise.core.errors import FleetError
from phasewise.fleet.config import LOOPBACK_HOSTS
from phasewise.fleet.local.state import FleetState

# --- Where phasewise stores what it installs and starts on this machine. Writers create these folders.


def engine_folder(home: Path) -> Path:
    """The engine's own Python environment."""
    return home / "engine"


def models_folder(home: Path) -> Path:
    """Models fetched by name, one folder each."""
    return home / "models"


def run_folder(home: Path) -> Path:
    """What runs now: one record per fleet."""
    return home / "run"


def logs_folder(home: Path) -> Path:
    """Logs of engines and installations."""
    return home / "logs"


# --- The files of a running fleet, all of them private to the user.

STATE_SUFFIX = ".json"


@dataclass(frozen=True)
class RunPaths:
    """The files of one fleet."""

    home: Path
    name: str

    @property
    def state(self) -> Path:
        """What runs now, written by the supervisor."""
        return run_folder(self.home) / f"{self.name}{STATE_SUFFIX}"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return run_folder(self.home) / f"{self.name}.lock"

    @property
    def plan(self) -> Path:
        """What a background supervisor starts."""
        return run_folder(self.home) / f"{self.name}.plan"

    @property
    def gateway_file(self) -> Path:
        """The gateway's configuration."""
        return run_folder(self.home) / f"{self.name}.gateway"

    @property
    def admin_key(self) -> Path:
        """The key to the gateway's own endpoints."""
        return run_folder(self.home) / f"{self.name}.admin-key"

    def engine_key(self, engine: str) -> Path:
        """The key that an engine asks its gateway for."""
        return run_folder(self.home) / f"{self.name}-{engine}.engine-key"

    @property
    def supervisor_log(self) -> Path:
        """The output of a background supervisor."""
        return logs_folder(self.home) / f"{self.name}-supervisor.log"


_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700


def write_private(path: Path, data: bytes) -> None:
    """Replace a file in one step; a reader sees the old content or the new, and other users see neither."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_FOLDER)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def private_opener(path: str, flags: int) -> int:
    """For `open()`: makes a file private to the user, also if it existed and was not."""
    descriptor = os.open(path, flags, _PRIVATE_FILE)
    os.fchmod(descriptor, _PRIVATE_FILE)
    return descriptor


def write_state(paths: RunPaths, state: FleetState) -> None:
    """Record what runs now."""
    write_private(paths.state, state.model_dump_json(indent=1).encode())


def read_state(paths: RunPaths) -> FleetState | None:
    """What the supervisor last recorded, or None when no fleet of this name runs."""
    try:
        return FleetState.model_validate_json(paths.state.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise FleetError(
            f"{paths.state} cannot be read as the state of a fleet",
            hint="another version of phasewise may have written it: stop the fleet with that, or remove it",
        ) from error


def fleet_names(home: Path) -> list[str]:
    """The fleets that have a record, running or not."""
    return sorted(path.stem for path in run_folder(home).glob(f"[!.]*{STATE_SUFFIX}"))


@contextmanager
def only_supervisor(paths: RunPaths) -> Iterator[None]:
    """Hold the fleet's lock; FleetError when another supervisor has it."""
    paths.lock.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_FOLDER)
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT, _PRIVATE_FILE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise already_running(paths.name) from error
        yield
    finally:
        os.close(descriptor)


def is_supervised(paths: RunPaths) -> bool:
    """Whether a supervisor holds the fleet's lock."""
    try:
        descriptor = os.open(paths.lock, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def already_running(name: str) -> FleetError:
    """The error for a second fleet of the same name."""
    return FleetError(
        f"fleet {name} is running already",
        hint="see `phasewise status`; stop it with `phasewise down`, or choose another --name",
    )


def engine_key_at(url: str, home: Path) -> str | None:
    """The key of an engine that runs in one of this machine's fleets; None for any other address."""
    asked = urlsplit(url)
    if asked.hostname not in LOOPBACK_HOSTS:
        return None
    for paths in (RunPaths(home, name) for name in fleet_names(home)):
        state = read_state(paths)
        for engine in () if state is None else state.engines:
            if urlsplit(engine.url).port == asked.port and (file := paths.engine_key(engine.name)).is_file():
                return file.read_text().strip()
    return None


def admin_key_sha256(paths: RunPaths) -> str:
    """The hash of the fleet's admin key, which is created on first use."""
    try:
        key = paths.admin_key.read_text().strip()
    except FileNotFoundError:
        key = secrets.token_urlsafe(32)
        write_private(paths.admin_key, f"{key}\n".encode())
    return hashlib.sha256(key.encode()).hexdigest()


# --- Finds the admin key of a gateway on this machine. A key is sent only to an address on this machine.

LONE_GATEWAY_KEY = "admin-key"
"""The key file of gateways that were started without a fleet."""


def find_admin_key(url: str, home: Path) -> str | None:
    """The key of the gateway at this address; None if there is none."""
    if urlsplit(url).hostname not in LOOPBACK_HOSTS:
        return None
    fleets = [RunPaths(home, name) for name in fleet_names(home)]
    states = {paths.admin_key: read_state(paths) for paths in fleets}
    port = urlsplit(url).port
    fitting = [key for key, state in states.items() if state and urlsplit(state.gateway.url).port == port]
    for path in (*fitting, run_folder(home) / LONE_GATEWAY_KEY):
        if path.is_file():
            return path.read_text(encoding="ascii").strip()
    return None
