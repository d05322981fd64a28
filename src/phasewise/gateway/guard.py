"""Keeps background tasks alive through unexpected errors."""

from __future__ import annotations

import logging
from types import TracebackType

logger = logging.getLogger("phasewise.gateway")


class ErrorGuard:
    """Lets no error out of its block, and logs each kind once, because it may recur every second.

    `what` names the task that goes on. The log shows kind and traceback, without the error's message.
    """

    __slots__ = ("_reported", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._reported: set[type[BaseException]] = set()

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Whether the error is suppressed. A cancellation is not."""
        if kind is None or error is None or not issubclass(kind, Exception):
            return False
        if kind not in self._reported:
            self._reported.add(kind)
            message = "%s met an error of the gateway's own and goes on. hint: report it with this line"
            logger.error(message, self._what, exc_info=(kind, error, traceback))
        return True
