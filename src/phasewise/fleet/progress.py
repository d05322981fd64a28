"""What a long task tells its watcher: stages that start, show a line of detail and end.

How that looks on a terminal is the command line's matter.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a task made of stages."""

    def started(self, number: int, total: int, title: str) -> None:
        """A stage begins."""

    def detail(self, line: str) -> None:
        """What the running stage does just now."""

    def finished(self, outcome: str) -> None:
        """The running stage ended well; `outcome` is a word or two (done, already there)."""
