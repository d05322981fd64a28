"""Stops a fleet from outside: asks its supervisor, and if that is gone ends what it left behind.

Every process is told by its start time from a later one with the same number, so that no stranger is hit.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from phasewise.errors import FleetError
from phasewise.fleet import proc_fs
from phasewise.fleet.fleet_state import FleetState, ProcessIdentity
from phasewise.fleet.fleet_status import supervisor_lives
from phasewise.fleet.keeper import CLOSES_WITHIN_S
from phasewise.fleet.pace import Pace
from phasewise.fleet.process import signal_group
from phasewise.fleet.run_file import read_state
from phasewise.fleet.run_paths import RunPaths

GROUPS_STOP_WITHIN_S = 8.0
_POLL_S = 0.1


def stop_fleet(paths: RunPaths, state: FleetState, show: Callable[[FleetState], None] | None = None) -> None:
    """End every process of a fleet and remove its record; FleetError when something cannot be ended.

    `show` is handed the supervisor's record again and again while it stops: running streams may take a while.
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
    """Killing a supervisor that still lets streams finish would cut them: it has all the time it may take."""
    return Pace().longest_stop_s(state.drain_s) + CLOSES_WITHIN_S + 5.0


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
    raise FleetError(f"processes {pids} of fleet {state.name} do not end", hint="look at them with `ps`")


def _left(leaders: list[ProcessIdentity]) -> list[int]:
    return [pid for leader in leaders for pid in proc_fs.living_in_group(leader)]


def _comes_true(condition: Callable[[], bool], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
