"""Reads how much processor time the engines on this machine got during a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from phasewise.clients.processes import (
    CpuReading,
    between,
    command_line,
    cores_of,
    listening_processes,
    loopback_port,
    read_stat,
    snapshot,
)
from phasewise.diagnosis.observed.observation import HostCpu, WatchedEngine
from phasewise.engines.known import ENGINES
from phasewise.fleet.local.placement import native_bf16


class HostWatch:
    """Reads the machine's state. It blocks for some milliseconds, so call it in a thread."""

    def __init__(self, engines: Iterable[WatchedEngine]) -> None:
        ports = {engine.name: loopback_port(engine.url) for engine in engines}
        self._ports = {name: port for name, port in ports.items() if port is not None}
        self._pids: dict[str, int] = {}
        self._before: dict[int, CpuReading] = {}

    def begin(self) -> None:
        """Find the engines' processes and read their CPU use so far."""
        by_port = listening_processes(frozenset(self._ports.values())) if self._ports else {}
        self._pids = {name: by_port[port] for name, port in self._ports.items() if port in by_port}
        self._before = _read(self._pids.values())

    def end(self) -> dict[str, HostCpu]:
        """The CPU use of each since then, by the engine's name, for processes that can be inspected."""
        after = _read(self._pids.values())
        lacks_bf16 = native_bf16() is False and not any(device.exists() for device in ACCELERATORS)
        found = {}
        for name, pid in self._pids.items():
            stat = read_stat(pid)
            if pid in self._before and pid in after and stat is not None:
                use = between(self._before[pid], after[pid])
                command = command_line(pid)
                dtype = slow_format(command) if lacks_bf16 else None
                found[name] = HostCpu(use, stat.started_unix_s, dtype, settings_of(command), cores_of(pid))
        return found


ACCELERATORS = tuple(map(Path, ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/accel", "/dev/dri")))
"""Where one of these is, an engine may compute on a device, and the processor's formats do not matter."""
BFLOAT16 = "bfloat16"


def slow_format(command: Sequence[str]) -> str | None:
    """The number format that an engine started so computes in, if it is the one that this processor lacks."""
    chosen = next(
        (
            number_format
            for engine in ENGINES
            if (number_format := engine.number_format_of(command)) is not None
        ),
        None,
    )
    return chosen if chosen == BFLOAT16 else None


def settings_of(command: Sequence[str]) -> Mapping[str, int]:
    """The settings on a command line, by our names; empty if none are read there."""
    return next((found for engine in ENGINES if (found := engine.settings_of(command))), {})


def _read(pids: Iterable[int]) -> dict[int, CpuReading]:
    return {pid: reading for pid in set(pids) if (reading := snapshot(pid)) is not None}
