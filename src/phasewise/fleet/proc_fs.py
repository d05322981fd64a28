"""Reads what /proc tells of processes: who lives, since when, in whose session, started as what.

It changes nothing; a process that goes away while it is read counts as gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phasewise.fleet.fleet_state import ProcessIdentity

PROC = Path("/proc")
_GONE = (OSError, ValueError, IndexError)
_LIFELESS = frozenset("ZXx")


@dataclass(frozen=True)
class ProcessFacts:
    """A line of the process table."""

    pid: int
    state: str
    group: int
    session: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether it still runs: a process that nobody has collected yet does not."""
        return self.state not in _LIFELESS


def facts_of(pid: int) -> ProcessFacts | None:
    """What is known of a process, or None."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        # The name stands in brackets and may hold anything, brackets and blanks too.
        fields = text[text.rindex(")") + 2 :].split()
        return ProcessFacts(pid, fields[0], int(fields[2]), int(fields[3]), int(fields[19]))
    except _GONE:
        return None


def identity_of(pid: int) -> ProcessIdentity | None:
    """A process told apart from every other with its number, or None when it is gone."""
    facts = facts_of(pid)
    return ProcessIdentity(pid=pid, start_ticks=facts.start_ticks) if facts is not None else None


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process still runs."""
    facts = facts_of(identity.pid)
    return facts is not None and facts.alive and facts.start_ticks == identity.start_ticks


def living_in_group(leader: ProcessIdentity) -> list[int]:
    """The living processes of the session that `leader` began, itself included.

    The kernel gives a number to nobody else while it still names a session, so members that outlive their
    leader are found by it; a stranger who leads under that number now is told by his start time.
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
        return [int(folder.name) for folder in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []


def command_line(pid: int) -> str:
    """How a process was started, on one line; empty when that cannot be read."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode("utf-8", "replace").strip()


def boot_id() -> str:
    """Differs after every boot of the machine, when process numbers and start times begin anew."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
