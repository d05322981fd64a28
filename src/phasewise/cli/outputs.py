"""Lines on stderr; output files, checked before a command begins; Ctrl-C, which keeps what was measured."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from phasewise.core.errors import ConfigError
from phasewise.report.console import err


def say(words: str) -> None:
    """A line on stderr, for what happens during a command and which files it wrote."""
    err.print(words, style="dim", soft_wrap=True, markup=False)


def reject_unwritable(option: str, path: Path | None) -> None:
    """ConfigError if a file cannot be written; the file is not changed."""
    if path is None:
        return
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(
            f"{option} {path} cannot be written ({error.strerror})", hint="give another file"
        ) from error
    if is_new:
        path.unlink()


# --- Ctrl-C that keeps what was measured.


class Stoppable(Protocol):
    """A running task that can end early and return what it has."""

    def stop(self) -> None:
        """End soon."""
        ...


@dataclass(slots=True)
class Interrupts:
    """Turns Ctrl-C into an orderly end.

    A run is stopped and returns what it has. Anything else, such as preparing prompts or starting a fleet, is
    cancelled; a caller with results checks `forgives` and returns them.
    """

    requested: bool = False
    running: Stoppable | None = None
    _task: asyncio.Task[Any] | None = field(default=None, init=False)

    @contextmanager
    def handled(self, *others: signal.Signals) -> Iterator[None]:
        """Handle Ctrl-C, and `others` in the same way, for the current task within the block.

        Signals that are ignored stay ignored: under nohup a run outlives its terminal.
        """
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        handled = [signal.SIGINT, *(each for each in others if signal.getsignal(each) is not signal.SIG_IGN)]
        for each in handled:
            loop.add_signal_handler(each, self._stop)
        try:
            yield
        finally:
            for each in handled:
                loop.remove_signal_handler(each)

    def forgives(self) -> bool:
        """Whether a cancellation came from Ctrl-C; if so it is cleared, and the task may continue."""
        if self.requested and self._task is not None:
            self._task.uncancel()
        return self.requested

    def _stop(self) -> None:
        again, self.requested = self.requested, True
        if self.running is not None and not again:
            self.running.stop()
        elif self._task is not None:
            self._task.cancel()
