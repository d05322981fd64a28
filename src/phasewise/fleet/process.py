"""Starts a command as the leader of a session of its own, and ends that whole session.

When to start, restart or give up is the supervisor's to decide.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from phasewise.errors import FleetError
from phasewise.fleet import proc_fs
from phasewise.fleet.fleet_state import ProcessIdentity
from phasewise.fleet.plan import ProcessPlan
from phasewise.fleet.run_file import private_opener

RESOURCE_TRACKER = "multiprocessing.resource_tracker"


class Child:
    """A process we started, with all it started in turn."""

    def __init__(self, popen: subprocess.Popen[bytes], identity: ProcessIdentity) -> None:
        self._popen = popen
        self.identity = identity

    @property
    def exit_code(self) -> int | None:
        """None while the leader runs; minus the signal's number if one killed it."""
        return self._popen.poll()

    def terminate(self) -> None:
        """Ask the leader to end; it sees to its own children."""
        if self.exit_code is None:
            self._popen.terminate()

    def kill_workers(self) -> None:
        """End the session but for those who clean up shared memory: they leave when all others are gone."""
        signal_group(self.identity, signal.SIGKILL, sparing=RESOURCE_TRACKER)

    def kill(self) -> None:
        """End every process of the session at once."""
        signal_group(self.identity, signal.SIGKILL)

    @property
    def gone(self) -> bool:
        """Whether nothing of the session is left."""
        return self.exit_code is not None and not proc_fs.living_in_group(self.identity)


def start(plan: ProcessPlan, scratch: Path, heading: str) -> Child:
    """Start a process; its output is added to its log below a line that says `heading`.

    `scratch` is its folder for temporary files: vLLM leaves sockets behind in it.
    """
    log_path = Path(plan.log)
    # The log holds the user's paths and flags.
    with open(log_path, "ab", buffering=0, opener=private_opener) as log:
        with suppress(OSError):  # a full disk costs the heading, not the engine
            log.write(f"--- phasewise: {heading}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        mine = os.sched_getaffinity(0)
        try:
            if plan.affinity:
                # Inherited by the child from its first instruction on; a later change would miss its threads.
                os.sched_setaffinity(0, plan.affinity)
            popen = subprocess.Popen(  # noqa: S603 - the plan's own command
                plan.argv,
                env={**os.environ, "TMPDIR": str(scratch), **plan.env},
                cwd=log_path.parent,  # not the caller's folder: a file there could pass for a module
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise FleetError(
                f"{plan.argv[0]} cannot be started ({error.strerror})",
                hint="check that it is there and executable",
            ) from error
        finally:
            os.sched_setaffinity(0, mine)
    identity = proc_fs.identity_of(popen.pid)
    if identity is None:  # not collected yet, so its entry cannot be missing
        raise FleetError(f"process {popen.pid} is not in /proc", hint="is /proc mounted?")
    return Child(popen, identity)


def signal_group(leader: ProcessIdentity, number: signal.Signals, sparing: str | None = None) -> None:
    """Signal what lives of a session, but for processes with `sparing` in their command line."""
    for pid in proc_fs.living_in_group(leader):
        if sparing is None or sparing not in proc_fs.command_line(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
