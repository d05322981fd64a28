"""Finds out before the start whether the ports are free, and names who holds one that is not.

Which ports a fleet wants is the plan's to say.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from phasewise.errors import FleetError
from phasewise.fleet import proc_fs
from phasewise.fleet.plan import FleetPlan

_LISTENING = "0A"
_QUOTED_CHARACTERS = 100


@dataclass(frozen=True)
class WantedPort:
    """A port, who wants it, and how the user chooses another."""

    port: int
    host: str
    wanted_by: str
    remedy: str


def wanted_ports(plan: FleetPlan) -> list[WantedPort]:
    """Every port a fleet listens on."""
    elsewhere = "move the engines with --engine-port or first_engine_port"
    wanted = [
        WantedPort(
            plan.gateway.port, plan.gateway.host, "the gateway", "choose another with --port or gateway.port"
        )
    ]
    for engine in plan.engines:
        wanted.append(WantedPort(engine.port, engine.host, f"engine {engine.name}", elsewhere))
        if engine.steps_port is not None:
            who = f"the step recorder of engine {engine.name}"
            wanted.append(WantedPort(engine.steps_port, engine.host, who, elsewhere))
        if engine.side_port is not None:
            who = f"the KV side channel of engine {engine.name}"
            wanted.append(WantedPort(engine.side_port, engine.host, who, elsewhere))
    return wanted


def refuse_taken_ports(wanted: Iterable[WantedPort]) -> None:
    """FleetError for the first port that is not free."""
    for want in wanted:
        problem = _bind_problem(want.host, want.port)
        if problem is None:
            continue
        if problem.errno != errno.EADDRINUSE:
            raise FleetError(
                f"{want.wanted_by} cannot listen on {want.host}:{want.port} ({problem.strerror})",
                hint=want.remedy,
            )
        raise FleetError(
            f"port {want.port}, wanted by {want.wanted_by}, is taken by {describe_holder(want.port)}",
            hint=f"stop that process, or {want.remedy}",
        )


def describe_holder(port: int) -> str:
    """The process that listens on a port, as a phrase."""
    pid = holder_of(port)
    if pid is None:
        return "a process of another user"
    started_as = proc_fs.command_line(pid)
    if len(started_as) > _QUOTED_CHARACTERS:
        started_as = started_as[: _QUOTED_CHARACTERS - 1] + "…"
    return f"pid {pid} ({started_as})" if started_as else f"pid {pid}"


def holder_of(port: int) -> int | None:
    """The process that listens on a port, if we may see it."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return None
    return next((facts.pid for facts in proc_fs.all_processes() if wanted & _open_files(facts.pid)), None)


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc_fs.PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _open_files(pid: int) -> set[str]:
    names = set()
    try:
        for link in (proc_fs.PROC / str(pid) / "fd").iterdir():
            names.add(str(Path(link).readlink()))
    except OSError:
        return names
    return names


def _bind_problem(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            # As the servers do: a port whose last connections are still fading counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None
