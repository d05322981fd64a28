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
    return _read_rows(stat).get("cpu")


def read_core_times(stat: Path = STAT) -> dict[int, CpuTimes]:
    """The same of each processor by its number; empty on systems that do not tell."""
    return {int(name[3:]): times for name, times in _read_rows(stat).items() if name[3:].isdecimal()}


def _read_rows(stat: Path) -> dict[str, CpuTimes]:
    try:
        rows = [row.split() for row in stat.read_text().splitlines() if row.startswith("cpu")]
        counted = {name: [int(ticks) for ticks in fields[:8]] for name, *fields in rows}
    except (OSError, ValueError):
        return {}
    return {name: _times(ticks) for name, ticks in counted.items() if len(ticks) == 8}


def _times(ticks: list[int]) -> CpuTimes:
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
