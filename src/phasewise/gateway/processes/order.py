"""What a process of a gateway is started with: a file in the gateway's private folder, which holds no key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import ApiKey, GatewayFile, load_gateway_file
from phasewise.fleet.local.run_files import write_private
from phasewise.gateway.api.auth import key_sha256


@dataclass(frozen=True, slots=True)
class GatewaySource:
    """Where the configuration is read, now and at each reload: a file, or what the command line gave.

    `admin_key_sha256` is for a file that names no admin key. `given` is a GatewayFile as JSON, whose client
    keys are read from `api_key_file` if there is one.
    """

    path: str | None = None
    admin_key_sha256: str | None = None
    given: str | None = None
    api_key_file: str | None = None

    def read(self) -> GatewayFile:
        """Raises ConfigError if it cannot be used."""
        if self.path is not None:
            return self.with_admin_key(load_gateway_file(Path(self.path)))
        file = GatewayFile.model_validate_json(self.given or "")
        if self.api_key_file is None:
            return file
        return _with(file, api_keys=read_keys(Path(self.api_key_file)))

    def with_admin_key(self, file: GatewayFile) -> GatewayFile:
        """The file with an admin key, if it has none."""
        if file.gateway.admin_key_sha256 is not None:
            return file
        return _with(file, admin_key_sha256=self.admin_key_sha256)

    @property
    def watched(self) -> Path | None:
        """The file that holds what may change."""
        path = self.path or self.api_key_file
        return None if path is None else Path(path)


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """One client key per line."""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", hint="check the path") from error
    if not lines:
        raise ConfigError(f"{path} has no keys", hint="write one key per line")
    return tuple(ApiKey(sha256=key_sha256(line)) for line in lines)


def _with(file: GatewayFile, **settings: Any) -> GatewayFile:  # noqa: ANN401 - whatever the model has
    return file.model_copy(update={"gateway": file.gateway.model_copy(update=settings)})


@dataclass(frozen=True, slots=True)
class ProcessOrder:
    """`process` is unique among all that a gateway ever starts, `number` counts those that serve from 0.

    Of the descriptors, `lifeline` becomes readable when the supervisor is gone, and a line with `process`
    written to `reports` says that it serves. `successor_of` is the process in whose place it was started: it
    asks that one for what it has learned. With `reads_source` it reads the configuration again, otherwise it
    has the one in force. With `keeps_listening`, whoever gave the gateway its listeners goes on
    listening when it stops. `home` is where the gateway is recorded.
    """

    folder: str
    source: GatewaySource
    home: str | None
    picker_port: int | None
    keeps_listening: bool
    process: int = 0
    number: int = 0
    listeners: tuple[int, ...] = ()
    lifeline: int = -1
    reports: int = -1
    successor_of: int | None = None
    reads_source: bool = False

    @classmethod
    def read(cls, path: Path) -> ProcessOrder:
        """The order in this file."""
        fields = orjson.loads(path.read_bytes())
        source = GatewaySource(**fields.pop("source"))
        return cls(**{**fields, "listeners": tuple(fields["listeners"])}, source=source)

    def write(self, path: Path) -> None:
        """Only this user can read it."""
        write_private(path, orjson.dumps(self))


@dataclass(frozen=True, slots=True)
class RestartProgress:
    """How often processes were asked to be replaced, and how many of them are since the last time."""

    asked: int = 0
    replaced: int = 0
    of: int = 0
    error: str = ""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.replaced >= self.of or bool(self.error)


# --- The gateway's private folder, which only its user can enter.


def in_force_file(folder: Path) -> Path:
    """The configuration that all processes have."""
    return folder / "configuration"


def secret_file(folder: Path) -> Path:
    """Random bytes that all processes of a gateway know, and those that follow them."""
    return folder / "secret"


def socket_file(folder: Path, process: int) -> Path:
    """The admin socket of a process."""
    return folder / f"process-{process}"


def error_file(folder: Path, process: int) -> Path:
    """Why a process could not start: the error's message and hint."""
    return folder / f"error-{process}"


def progress_file(folder: Path) -> Path:
    """Where the supervisor records a RestartProgress."""
    return folder / "restart"
