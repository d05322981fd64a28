"""Starts a command as the leader of its own session, and ends that whole session."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from phasewise.core.errors import FleetError
from phasewise.fleet.local.run_files import private_opener
from phasewise.fleet.local.state import ProcessIdentity

if TYPE_CHECKING:
    # A gateway looks up its own process, and needs nothing of what plans load.
    from phasewise.fleet.local.plan import ProcessPlan

RESOURCE_TRACKER = "multiprocessing.resource_tracker"


class Child:
    """A process we started, with all its descendants."""

    def __init__(self, popen: subprocess.Popen[bytes], identity: ProcessIdentity) -> None:
        self._popen = popen
        self.identity = identity

    @property
    def exit_code(self) -> int | None:
        """None while the leader runs; minus the signal's number if one killed it."""
        return self._popen.poll()

    def terminate(self) -> None:
        """Ask the leader to end; it ends its own children."""
        if self.exit_code is None:
            self._popen.terminate()

    def kill_workers(self) -> None:
        """Kill the session except for processes that clean up shared memory: these end after all others."""
        signal_group(self.identity, signal.SIGKILL, sparing=RESOURCE_TRACKER)

    def kill(self) -> None:
        """End every process of the session at once."""
        signal_group(self.identity, signal.SIGKILL)

    @property
    def gone(self) -> bool:
        """Whether no process of the session is left."""
        return self.exit_code is not None and not living_in_group(self.identity)


def start(plan: ProcessPlan, scratch: Path, heading: str) -> Child:
    """Start a process; its output is appended to its log after a line with `heading`.

    `scratch` is its folder for temporary files: vLLM leaves sockets behind in it.
    """
    log_path = Path(plan.log)
    # The log may contain the user's paths and flags.
    with open(log_path, "ab", buffering=0, opener=private_opener) as log:
        with suppress(OSError):  # on a full disk the heading is missing, but the engine starts
            log.write(f"--- phasewise: {heading}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        secrets = {name: Path(file).read_text().strip() for name, file in plan.secrets.items()}
        mine = os.sched_getaffinity(0)
        try:
            if plan.affinity:
                # Set before the start, so that all threads of the child inherit it.
                os.sched_setaffinity(0, plan.affinity)
            popen = subprocess.Popen(  # noqa: S603 - the plan's own command
                plan.argv,
                env={**os.environ, "TMPDIR": str(scratch), **plan.env, **secrets},
                cwd=log_path.parent,  # not the caller's folder: a file there could be imported as a module
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise FleetError(
                f"{plan.argv[0]} cannot be started ({error.strerror})",
                hint="check that it exists and is executable",
            ) from error
        finally:
            os.sched_setaffinity(0, mine)
    identity = identity_of(popen.pid)
    if identity is None:  # its parent has not waited for it, so its entry exists
        raise FleetError(f"process {popen.pid} is not in /proc", hint="check that /proc is mounted")
    return Child(popen, identity)


def signal_group(leader: ProcessIdentity, number: signal.Signals, sparing: str | None = None) -> None:
    """Signal the living processes of a session, except those with `sparing` in their command line."""
    for pid in living_in_group(leader):
        if sparing is None or sparing not in command_line(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


# --- Reads processes from /proc: whether they live, their start time, session and command line.
#
# A process that ends while it is read counts as gone.

PROC = Path("/proc")
_GONE = (OSError, ValueError, IndexError)
_LIFELESS = frozenset("ZXx")


@dataclass(frozen=True)
class ProcessFacts:
    """A row of the process table."""

    pid: int
    state: str
    session: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return self.state not in _LIFELESS


def facts_of(pid: int) -> ProcessFacts | None:
    """A process's row, or None."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        # The name is in brackets and may contain anything, including brackets and blanks.
        fields = text[text.rindex(")") + 2 :].split()
        return ProcessFacts(pid, fields[0], int(fields[3]), int(fields[19]))
    except _GONE:
        return None


def identity_of(pid: int) -> ProcessIdentity | None:
    """An identity that differs from every other process with this number, or None when it is gone."""
    facts = facts_of(pid)
    return ProcessIdentity(pid=pid, start_ticks=facts.start_ticks) if facts is not None else None


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this process still runs."""
    facts = facts_of(identity.pid)
    return facts is not None and facts.alive and facts.start_ticks == identity.start_ticks


def living_in_group(leader: ProcessIdentity) -> list[int]:
    """The living processes of the session that `leader` began, including itself.

    The kernel does not reuse a number while it still names a session, so members that outlive their leader
    are found by it; the start time excludes another process that leads under that number now.
    """
    now_leading = facts_of(leader.pid)
    if now_leading is not None and now_leading.start_ticks != leader.start_ticks:
        return []
    return [
        facts.pid
        for facts in all_processes()
        if facts.session == leader.pid and facts.alive and facts.start_ticks >= leader.start_ticks
    ]


def all_processes() -> Iterator[ProcessFacts]:
    """The process table."""
    for folder in PROC.iterdir():
        if folder.name.isdecimal() and (facts := facts_of(int(folder.name))) is not None:
            yield facts


def threads_of(pid: int) -> list[int]:
    """The threads of a process."""
    try:
        return [thread.id for thread in psutil.Process(pid).threads()]
    except psutil.Error:
        return []


def command_line(pid: int) -> str:
    """How a process was started, on one line; empty when that cannot be read."""
    try:
        return " ".join(psutil.Process(pid).cmdline()).strip()
    except psutil.Error:
        return ""


def boot_id() -> str:
    """Changes with every boot of the machine, when process numbers and start times begin again."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
