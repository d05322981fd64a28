"""How this machine's processors spent their time, and which of them this process may use.

Time that a busy hypervisor takes from a virtual machine shows as `steal`.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

STAT = Path("/proc/stat")
_COUNTED = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""In the order of /proc/stat. Only Linux counts all of them, and the time of guests as the user's already."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of all processors together since the machine started; `total_s` includes idle time."""

    busy_s: float
    stolen_s: float
    total_s: float


def read_cpu_times() -> CpuTimes | None:
    """What the system has counted so far; None where it does not report it."""
    try:
        return _times(psutil.cpu_times()._asdict())
    except (OSError, ValueError, psutil.Error):
        return None


def read_core_times(stat: Path = STAT) -> dict[int, CpuTimes]:
    """The same of each processor by its number; empty on systems that do not report it.

    psutil lists processors without their numbers, which go astray when one of them is offline.
    """
    try:
        rows = [row.split() for row in stat.read_text().splitlines() if row.startswith("cpu")]
        per_s = os.sysconf("SC_CLK_TCK")
        return {
            int(name[3:]): _times(
                {field: int(tick) / per_s for field, tick in zip(_COUNTED, ticks, strict=False)}
            )
            for name, *ticks in rows
            if name[3:]
        }
    except (OSError, ValueError):
        return {}


def _times(seconds: Mapping[str, float]) -> CpuTimes:
    total_s, stolen_s = sum(seconds.get(name, 0.0) for name in _COUNTED), seconds.get("steal", 0.0)
    idle_s = seconds.get("idle", 0.0) + seconds.get("iowait", 0.0)
    return CpuTimes(busy_s=total_s - idle_s - stolen_s, stolen_s=stolen_s, total_s=total_s)


def stolen_share(before: CpuTimes, after: CpuTimes) -> float:
    """The share of the machine's time that the hypervisor gave to others between two readings."""
    total_s = after.total_s - before.total_s
    return (after.stolen_s - before.stolen_s) / total_s if total_s > 0 else 0.0


def busy_share(before: CpuTimes, after: CpuTimes) -> float:
    """The share of the machine's time in which its processors were busy between two readings."""
    total_s = after.total_s - before.total_s
    return (after.busy_s - before.busy_s) / total_s if total_s > 0 else 0.0


def usable_cores() -> tuple[int, ...]:
    """The processors that this process may use, by number: all of them where none can be withheld."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


# --- How many files and sockets this process may hold open. Who needs many says so at its start.

ENOUGH = 65_536
"""The number to request where the system sets no limit."""


def allow_many_streams() -> None:
    """Raise this process's limit of open sockets to the system's maximum: a stream takes one or two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else ENOUGH
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- This process's memory.

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of cgroups in version 2 and 1, as containers see their own."""
_NO_LIMIT_BYTES = 1 << 60
"""What version 1 shows without a limit is larger than this."""


def memory_limit_bytes() -> int | None:
    """The limit of the container that this process runs in; None without one."""
    for file in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            limit_bytes = int(file.read_text())
            return limit_bytes if limit_bytes < _NO_LIMIT_BYTES else None
    return None


def memory_bytes() -> int:
    """The memory that this process holds now."""
    return psutil.Process().memory_info().rss


def processor_name() -> str:
    """The model of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine() or "unknown")
