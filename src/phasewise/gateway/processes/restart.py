"""Lets a running gateway replace its processes by ones with the code and the file that are on disk now."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from phasewise.core.errors import ConfigError
from phasewise.fleet.local.gateway_run import GatewayState
from phasewise.fleet.local.process import is_alive

LOOK_EVERY_S = 0.05


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


def progress_file(folder: Path) -> Path:
    """Where the supervisor records it."""
    return folder / "restart"


def restart(gateway: GatewayState, on_progress: Callable[[RestartProgress], None]) -> None:
    """Return once every process is replaced. Raises ConfigError if one is not: it serves as before."""
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
