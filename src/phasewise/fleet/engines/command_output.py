"""Runs the commands of installations and passes on their output, without the names of package hosts."""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

from phasewise.core.errors import EngineInstallFailed

KEPT_LINES = 12
SHOWN_LINES = 4

_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^\s,'\")]+")


class CommandFailed(Exception):
    """A command ended with a non-zero code; `tail` has its last lines."""

    def __init__(self, code: int, tail: Sequence[str]) -> None:
        super().__init__(f"ended with code {code}")
        self.code = code
        self.tail = tuple(tail)


def run_lines(command: Sequence[str], on_line: Callable[[str], None], log: Path | None = None) -> None:
    """Run to the end, calling `on_line` for each line of output; also append them to `log`."""
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("a") if log is not None else nullcontext() as log_file,
        subprocess.Popen(  # noqa: S603 - this package builds the commands
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - PIPE above
        try:
            for raw in process.stdout:
                line = without_hosts(raw.rstrip())
                if not line:
                    continue
                tail.append(line)
                if log_file is not None:
                    log_file.write(line + "\n")
                on_line(line)
        except BaseException:
            # Ctrl-C or a failing `on_line`: nothing may continue to install in the background.
            process.kill()
            raise
    if process.returncode != 0:
        raise CommandFailed(process.returncode, tail)


def without_hosts(line: str) -> str:
    """A line with every address cut to its last part, so that private package hosts are not shown."""
    if line.startswith("Looking in "):
        return ""
    return _ADDRESS.sub(
        lambda address: address.group().rstrip("/").rpartition("/")[2].partition("#")[0], line
    )


# --- The progress of a long task: stages that start, show a line of detail and end.


class TaskProgress(Protocol):
    """Receives the progress of a task made of stages."""

    def started(self, number: int, total: int, title: str) -> None:
        """A stage begins."""

    def detail(self, line: str) -> None:
        """What the running stage does now."""

    def finished(self, outcome: str) -> None:
        """The running stage succeeded; `outcome` is a word or two (done, already there)."""


def run_command(
    command: Sequence[str],
    doing: str,
    log: Path,
    progress: TaskProgress,
    hint: str,
    hints: Sequence[tuple[str, str]] = (),
) -> None:
    """Run to the end, showing and logging each line. EngineInstallFailed says what `doing` it failed in.

    Its hint is the first of `hints` whose sign is in the output, else `hint`.
    """
    try:
        run_lines(command, progress.detail, log)
    except CommandFailed as failure:
        output = "\n".join(failure.tail)
        last_lines = "\n  ".join(failure.tail[-SHOWN_LINES:])
        raise EngineInstallFailed(
            f"{doing} failed (code {failure.code}):\n  {last_lines}\nlog: {log}",
            hint=next((known for sign, known in hints if sign in output), hint),
        ) from None
