"""Keeps what runs as long as the gateway does from being ended by an error that nobody foresaw.

What an error that was foreseen means is for those to know who may meet it.
"""

from __future__ import annotations

import logging
from types import TracebackType

logger = logging.getLogger("phasewise.gateway")


class Guard:
    """Lets no error out of its block, and tells each kind once: it may well come again every second.

    `what` is what goes on all the same. The log shows kind and place, and leaves the error's words out.
    """

    __slots__ = ("_told", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._told: set[type[BaseException]] = set()

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Whether the block goes on as if nothing had happened; being cancelled is no error."""
        if kind is None or error is None or not issubclass(kind, Exception):
            return False
        if kind not in self._told:
            self._told.add(kind)
            message = "%s met an error of the gateway's own and goes on. hint: report it with this line"
            logger.error(message, self._what, exc_info=(kind, error, traceback))
        return True
