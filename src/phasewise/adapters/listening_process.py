"""Which process of this machine listens on a port, and which processes belong to it.

An engine is its front end and the processes that it started. Command lines hold keys and are never read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

PROC = Path("/proc")
_LISTENS = "0A"
_HERE = frozenset(
    {
        "00000000",
        "0100007F",
        "0" * 32,
        "0" * 24 + "01000000",
        "0000000000000000FFFF00000100007F",
    }
)
"""Local addresses, as the kernel prints them, at which loopback is answered: any, 127.0.0.1, ::1."""
FORWARDERS = frozenset(
    {
        *("docker-proxy", "rootlessport", "conmon", "ssh", "sshd", "kubectl", "socat"),
        *("haproxy", "nginx", "envoy", "caddy", "traefik", "slirp4netns"),
    }
)
"""Programs that listen for others: what they use of a core says nothing about the engine behind them."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One process as /proc tells of it; `name` is the kernel's short one."""

    pid: int
    parent: int
    name: str
    cpu_s: float
    started_s: float
    """Since the machine booted."""


def loopback_port(url: str) -> int | None:
    """The port of an address on this machine's loopback; None for addresses that lead elsewhere."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return None
    return (parts.port or (443 if parts.scheme == "https" else 80)) if here else None


def listening_processes(ports: Collection[int], proc: Path = PROC) -> dict[int, int]:
    """The process behind each port, where we may see it: one look at the machine for all of them.

    A process started by the listening one may hold the same socket: the parent is the answer.
    """
    inodes = dict(_listening_inodes(ports, proc))
    if not inodes:
        return {}
    holders: dict[int, set[int]] = {}
    for pid in _pids(proc):
        for inode in _sockets_of(pid, proc) & inodes.keys():
            holders.setdefault(inodes[inode], set()).add(pid)
    found = {}
    for port, pids in holders.items():
        stats = [stat for pid in pids if (stat := read_stat(pid, proc)) is not None]
        eldest = [stat for stat in stats if stat.parent not in pids]
        if len(eldest) == 1 and eldest[0].name not in FORWARDERS:
            found[port] = eldest[0].pid
    return found


def process_tree(root: int, proc: Path = PROC) -> tuple[ProcessStat, ...]:
    """A process and all its descendants, itself first; empty when it is gone."""
    stats = {stat.pid: stat for pid in _pids(proc) if (stat := read_stat(pid, proc)) is not None}
    return tuple(_descent(root, stats)) if root in stats else ()


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """What the kernel counts of a process; None when it is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text()
        # The name stands in brackets and may hold anything, brackets too.
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        per_s = os.sysconf("SC_CLK_TCK")
        return ProcessStat(
            pid=pid,
            parent=int(fields[1]),
            name=head.partition("(")[2],
            cpu_s=(int(fields[11]) + int(fields[12])) / per_s,
            started_s=int(fields[19]) / per_s,
        )
    except (OSError, ValueError, IndexError):
        return None


def booted_unix_s(proc: Path = PROC) -> float | None:
    """When the machine booted."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
    except (OSError, ValueError, IndexError):
        return None


def _descent(root: int, stats: Mapping[int, ProcessStat]) -> Iterator[ProcessStat]:
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    ahead = [root]
    while ahead:
        pid = ahead.pop()
        yield stats[pid]
        ahead += children.get(pid, [])


def _listening_inodes(ports: Collection[int], proc: Path) -> Iterator[tuple[str, int]]:
    for table in ("tcp", "tcp6"):
        try:
            rows = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if len(fields) < 10 or fields[3] != _LISTENS:
                continue
            address, _, port = fields[1].rpartition(":")
            if address in _HERE and int(port, 16) in ports:
                yield fields[9], int(port, 16)


def _pids(proc: Path) -> Iterator[int]:
    try:
        yield from (int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    except OSError:
        return


def _sockets_of(pid: int, proc: Path) -> set[str]:
    found = set()
    try:
        for entry in os.scandir(proc / str(pid) / "fd"):
            try:
                target = os.readlink(entry.path)  # noqa: PTH115 - thousands of them: a Path each costs more
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        # Another user's process, or one that has ended.
        return set()
    return found
