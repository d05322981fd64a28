"""How this machine's processors spent their time, as Linux counts it.

A virtual machine whose host is busy loses time that no program of ours can see: it shows as `steal`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of all processors together since the machine started; `total_s` includes idleness."""

    busy_s: float
    stolen_s: float
    total_s: float


def read_cpu_times(stat: Path = STAT) -> CpuTimes | None:
    """What the kernel has counted until now, None on systems that do not tell."""
    try:
        first, _, _ = stat.read_text().partition("\n")
        name, *fields = first.split()
        ticks = [int(ticks) for ticks in fields[:8]]
    except (OSError, ValueError):
        return None
    if name != "cpu" or len(ticks) < 8:
        return None
    per_s = os.sysconf("SC_CLK_TCK")
    _user, _nice, _system, idle, waiting, _irq, _softirq, stolen = ticks
    total = sum(ticks)
    return CpuTimes(
        busy_s=(total - idle - waiting - stolen) / per_s,
        stolen_s=stolen / per_s,
        total_s=total / per_s,
    )


def stolen_share(before: CpuTimes, after: CpuTimes) -> float:
    """The share of the machine's time that others on the same host took between two readings."""
    total_s = after.total_s - before.total_s
    return (after.stolen_s - before.stolen_s) / total_s if total_s > 0 else 0.0


def busy_share(before: CpuTimes, after: CpuTimes) -> float:
    """The share of the machine's time in which its processors worked between two readings."""
    total_s = after.total_s - before.total_s
    return (after.busy_s - before.busy_s) / total_s if total_s > 0 else 0.0
