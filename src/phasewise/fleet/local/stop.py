"""Stops a fleet from outside: asks its supervisor, and if that is gone ends what it left behind.

A process's start time distinguishes it from a later one with the same number, so that no other process is
signalled.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import FleetError, UpstreamError
from phasewise.fleet.local import process as proc_fs
from phasewise.fleet.local.keeper import CLOSES_WITHIN_S
from phasewise.fleet.local.process import signal_group
from phasewise.fleet.local.run_files import RunPaths, read_state
from phasewise.fleet.local.state import (
    FleetState,
    MemberState,
    ProcessIdentity,
    ProcessStage,
    SupervisorTimes,
)

# --- Checks a fleet's record against the machine: which processes live, which answer. Changes nothing.
#
# The supervisor writes the record; it may lag behind the process table, or be dead.

HEALTH_TIMEOUT_S = 3.0
_OVER = frozenset({ProcessStage.FAILED, ProcessStage.STOPPED, ProcessStage.BACKING_OFF, ProcessStage.WAITING})


def supervisor_lives(state: FleetState) -> bool:
    """Whether the process that wrote the record still runs."""
    return state.boot_id == proc_fs.boot_id() and proc_fs.is_alive(state.supervisor)


async def checked(state: FleetState) -> FleetState:
    """The record with every member's current stage."""
    members = await asyncio.gather(*(_checked_member(member, state) for member in state.members))
    return state.model_copy(update=FleetState.named(members, len(state.engines)))


async def _checked_member(member: MemberState, state: FleetState) -> MemberState:
    supervised = supervisor_lives(state)
    if member.stage in _OVER and supervised:
        return member
    if member.process is None or state.boot_id != proc_fs.boot_id() or not proc_fs.is_alive(member.process):
        if member.stage in {ProcessStage.FAILED, ProcessStage.STOPPED}:
            return member
        return member.model_copy(update={"stage": ProcessStage.DEAD, "note": None})
    if member.stage in {ProcessStage.READY, ProcessStage.SILENT}:
        status = await _health_status(member.url)
        stage = ProcessStage.READY if status == 200 else ProcessStage.SILENT
        if member.role is None and status not in {None, 200}:
            stage = ProcessStage.WAITING  # a gateway that answers at all is healthy; it only lacks an engine
        return member.model_copy(update={"stage": stage, "note": None})
    return member


async def _health_status(url: str) -> int | None:
    client = HttpClient(url, Timeouts(HEALTH_TIMEOUT_S, HEALTH_TIMEOUT_S, HEALTH_TIMEOUT_S))
    try:
        return (await client.fetch("GET", "/health")).status
    except UpstreamError:
        return None
    finally:
        client.close()


GROUPS_STOP_WITHIN_S = 8.0
_POLL_S = 0.1


def stop_fleet(paths: RunPaths, state: FleetState, show: Callable[[FleetState], None] | None = None) -> None:
    """End every process of a fleet and remove its record; FleetError when a process does not end.

    `show` gets the supervisor's record repeatedly while it stops: running streams may take a while.
    """
    if supervisor_lives(state):
        with suppress(ProcessLookupError):
            os.kill(state.supervisor.pid, signal.SIGTERM)
        if not _comes_true(lambda: _supervisor_ended(paths, state, show), supervisor_stops_within_s(state)):
            signal_group(state.supervisor, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(state.supervisor.pid, signal.SIGKILL)
    _end_leftovers(state)
    shutil.rmtree(state.scratch, ignore_errors=True)
    for path in (paths.state, paths.gateway_file, paths.plan):
        path.unlink(missing_ok=True)


def supervisor_stops_within_s(state: FleetState) -> float:
    """How long to wait for the supervisor: killing it earlier would cut streams that it lets finish."""
    return SupervisorTimes().longest_stop_s(state.drain_s) + CLOSES_WITHIN_S + 5.0


def _supervisor_ended(paths: RunPaths, state: FleetState, show: Callable[[FleetState], None] | None) -> bool:
    if show is not None and (now := read_state(paths)) is not None:
        show(now)
    return not supervisor_lives(state)


def _end_leftovers(state: FleetState) -> None:
    if state.boot_id != proc_fs.boot_id():
        return
    leaders = [member.process for member in state.members if member.process is not None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for leader in leaders:
            signal_group(leader, number)
        if _comes_true(lambda: not _left(leaders), GROUPS_STOP_WITHIN_S):
            return
    pids = ", ".join(map(str, _left(leaders)))
    raise FleetError(f"processes {pids} of fleet {state.name} do not end", hint="inspect them with `ps`")


def _left(leaders: list[ProcessIdentity]) -> list[int]:
    return [pid for leader in leaders for pid in proc_fs.living_in_group(leader)]


def _comes_true(condition: Callable[[], bool], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
