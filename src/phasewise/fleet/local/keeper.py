"""A process that outlives a killed supervisor just long enough to end what it had started.

The kernel's signal on a parent's death reaches only direct children, so an engine's core process would stay
behind with all its memory. It runs as a separate file with the standard library alone. It reads sessions from
its standard input, one `+PID` or `-PID` per line, and ends them when that input ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GRACE_S = 5.0
CLOSES_WITHIN_S = GRACE_S + 5.0
_POLL_S = 0.1


class Keeper:
    """The supervisor's end of the pipe."""

    def __init__(self, scratch: Path) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this file
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def watch(self, session: int) -> None:
        """End this session if the supervisor dies."""
        self._notify(f"+{session}\n")

    def forget(self, session: int) -> None:
        """This session has ended."""
        self._notify(f"-{session}\n")

    def close(self) -> None:
        """Close the pipe; the process ends what it still watches."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(CLOSES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _notify(self, line: str) -> None:
        # If the keeper was killed, serving goes on.
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(line.encode())


def watched_sessions(lines: Iterable[str]) -> set[int]:
    """Read to the end of the input; the sessions that were added and not removed."""
    watched: set[int] = set()
    for line in lines:
        number = line[1:].strip()
        if not number.isdecimal():
            continue
        if line.startswith("+"):
            watched.add(int(number))
        elif line.startswith("-"):
            watched.discard(int(number))
    return watched


def end_groups(groups: set[int], grace_s: float) -> None:
    """Terminate every group, and kill what is left after the grace period."""
    deadline_s = time.monotonic() + grace_s
    left = {group for group in groups if _signal(group, signal.SIGTERM)}
    while left and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        left = {group for group in left if _signal(group, 0)}
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main() -> None:
    """Wait for the supervisor's end, then end what it left and remove its folder of temporary files."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_groups(watched_sessions(sys.stdin), GRACE_S)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
