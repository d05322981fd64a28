"""What this machine's processors gave the engines that run on it, between two moments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phasewise.adapters.listening_process import (
    booted_unix_s,
    listening_processes,
    loopback_port,
    read_stat,
)
from phasewise.adapters.process_cpu import CpuReading, CpuUse, between, snapshot
from phasewise.observe.target import WatchedEngine

SAME_START_S = 5.0
"""A process that began within this of when an engine says it did is that engine: boot times are rounded."""


@dataclass(frozen=True, slots=True)
class HostCpu:
    """What one engine's processes got, and when the one that listens began."""

    use: CpuUse
    started_unix_s: float | None

    def may_be(self, started_unix_s: float | None) -> bool:
        """Whether an engine that says it started then can be this one: a tunnel may end here instead."""
        if started_unix_s is None or self.started_unix_s is None:
            return True
        return abs(started_unix_s - self.started_unix_s) <= SAME_START_S


class HostWatch:
    """Looks at /proc when told to; it blocks for some milliseconds, so call it in a thread."""

    def __init__(self, engines: Iterable[WatchedEngine]) -> None:
        ports = {engine.name: loopback_port(engine.url) for engine in engines}
        self._ports = {name: port for name, port in ports.items() if port is not None}
        self._pids: dict[str, int] = {}
        self._before: dict[int, CpuReading] = {}

    def begin(self) -> None:
        """Find the engines' processes and read what they have used so far."""
        by_port = listening_processes(frozenset(self._ports.values())) if self._ports else {}
        self._pids = {name: by_port[port] for name, port in self._ports.items() if port in by_port}
        self._before = _read(self._pids.values())

    def end(self) -> dict[str, HostCpu]:
        """What each got since, by the engine's name; without those whose process cannot be looked into."""
        after = _read(self._pids.values())
        booted_s = booted_unix_s()
        found = {}
        for name, pid in self._pids.items():
            stat = read_stat(pid)
            if pid in self._before and pid in after and stat is not None:
                started_s = None if booted_s is None else booted_s + stat.started_s
                found[name] = HostCpu(between(self._before[pid], after[pid]), started_s)
        return found


def _read(pids: Iterable[int]) -> dict[int, CpuReading]:
    return {pid: reading for pid in set(pids) if (reading := snapshot(pid)) is not None}
