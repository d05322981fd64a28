"""Shows the stages of a long task on stderr: one line per stage with its time, and what it does just now.

It knows nothing of the task; see fleet/progress.py for what it is told.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from phasewise.cli.console import err


class StageLines:
    """A Progress for people: a spinner with the latest detail on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console = err) -> None:
        self._console = console
        self._status: Status | None = None
        self._label = ""
        self._started_s = 0.0

    def __enter__(self) -> StageLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def started(self, number: int, total: int, title: str) -> None:
        self._label = f"[{number}/{total}] {title}"
        self._started_s = time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(escape(self._label))
            self._status.start()
        else:
            self._console.print(self._label, markup=False, soft_wrap=True)

    def detail(self, line: str) -> None:
        if self._status is not None:
            room = max(20, self._console.width - len(self._label) - 16)
            self._status.update(
                f"{escape(self._label)} [dim]{self._elapsed()}  {escape(line.strip()[:room])}[/]"
            )

    def finished(self, outcome: str) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        self._console.print(f"{self._label}: {outcome} ({self._elapsed()})", markup=False, soft_wrap=True)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started_s:.0f} s"
