"""Checks before the start whether the ports are free, and names the process that holds one that is not."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phasewise.clients.processes import listeners
from phasewise.core.errors import FleetError
from phasewise.fleet.local import process as proc_fs

if TYPE_CHECKING:
    from phasewise.fleet.local.plan import FleetPlan

_QUOTED_CHARACTERS = 100


@dataclass(frozen=True)
class WantedPort:
    """A port, what needs it, and how the user chooses another."""

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


def reject_taken_ports(wanted: Iterable[WantedPort]) -> None:
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
            f"port {want.port}, needed by {want.wanted_by}, is used by {describe_holder(want.port)}",
            hint=f"stop that process, or {want.remedy}",
        )


def describe_holder(port: int) -> str:
    """The process that listens on a port, as a phrase."""
    pid = listeners((port,)).get(port)
    if pid is None:
        return "a process of another user"
    started_as = proc_fs.command_line(pid)
    if len(started_as) > _QUOTED_CHARACTERS:
        started_as = started_as[: _QUOTED_CHARACTERS - 1] + "…"
    return f"pid {pid} ({started_as})" if started_as else f"pid {pid}"


def _bind_problem(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            # As the servers do: a port with connections in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None
