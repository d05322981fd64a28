"""Ctrl-C that keeps what was measured, at whatever moment it comes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


class Stoppable(Protocol):
    """Something under way that can end early and hand over what it has."""

    def stop(self) -> None:
        """End soon."""
        ...


@dataclass(slots=True)
class Interrupts:
    """Turns Ctrl-C into an end in good order.

    A run that is under way is stopped and hands over what it has. Anything else, such as preparing prompts or
    starting a fleet, is cancelled; who holds results asks `forgives` and hands them over.
    """

    requested: bool = False
    running: Stoppable | None = None
    _task: asyncio.Task[Any] | None = field(default=None, init=False)

    @contextmanager
    def handled(self, *others: signal.Signals) -> Iterator[None]:
        """Handle Ctrl-C, and other signals in the same way, for the task that enters, until it leaves.

        Others that are ignored stay so: nohup has a run outlive its terminal.
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
        """Whether a cancellation came of a Ctrl-C; then it is dealt with, and the task may go on."""
        if self.requested and self._task is not None:
            self._task.uncancel()
        return self.requested

    def _stop(self) -> None:
        again, self.requested = self.requested, True
        if self.running is not None and not again:
            self.running.stop()
        elif self._task is not None:
            self._task.cancel()
