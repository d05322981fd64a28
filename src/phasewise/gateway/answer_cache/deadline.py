"""Calls a part of the cache within a deadline, behind a circuit breaker.

While the circuit is open the part costs requests no time; a background task tries it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from phasewise.clients.event_loop import fair_deadline
from phasewise.core.errors import ConfigError, PhasewiseError
from phasewise.gateway.guard import ErrorGuard

FAILURES_TO_OPEN = 3
"""In a row: one late answer may have another cause."""
FAIR_SHARE = 0.5
"""The share of the deadline from which a timeout counts as a full failure; a shorter one counts by its
share."""
TRY_AGAIN_EVERY_S = 1.0
REPORT_EVERY_S = 10.0
"""The least time between two log lines about a part."""
READY_WITHIN_S = 5.0
"""The time to prepare a part, in the background."""
PROBE = "probe"
"""The key that a probe asks for; no request has it."""

logger = logging.getLogger("phasewise.gateway")

_Answer = TypeVar("_Answer")


class Breaker:
    """The circuit breaker of one part, `name`; its failures are raised as `unreachable`.

    `prepare` makes the part ready, at start and again after a failure. `probe` is a small call that must
    succeed within `deadline_s` before the circuit closes. `excused` errors cost no time and do not count as
    failures.
    """

    def __init__(
        self,
        name: str,
        unreachable: type[PhasewiseError],
        prepare: Callable[[], Awaitable[None]],
        probe: Callable[[], Awaitable[object]],
        deadline_s: float,
        excused: tuple[type[PhasewiseError], ...] = (),
    ) -> None:
        self._name = name
        self._unreachable = unreachable
        self._prepare = prepare
        self._probe = probe
        self._deadline_s = deadline_s
        self._excused = excused
        self._failures = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._reported_down = False
        self._reported_s = -REPORT_EVERY_S
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the part is not called, because it does not answer."""
        return self._open.is_set()

    async def start(self) -> None:
        """Prepare the part; if it does not answer, try again later.

        Raises ConfigError if it can never work.
        """
        try:
            await self._reach()
        except ConfigError:
            raise
        except Exception as error:
            # Requests are answered without the part.
            self._report_down(error)
        self._task = asyncio.create_task(self._try_again())

    async def stop(self) -> None:
        """Stop trying."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ask(
        self,
        call: Callable[[], Awaitable[_Answer]],
        within_s: float,
        excused: tuple[type[Exception], ...] = (),
    ) -> _Answer:
        """The part's answer; raises TimeoutError if it is late and the part's own error if it fails.

        `excused` errors do not count as failures of the part.
        """
        if self.is_open:
            raise self._unreachable(f"{self._name} does not answer")
        if within_s <= 0:
            raise TimeoutError
        try:
            async with fair_deadline(within_s):
                answer = await call()
        except (*self._excused, *excused):
            raise
        except TimeoutError as error:
            # A timeout counts less if other parts left little time. It does count: a part that never answers
            # would cost every request all of its time.
            share = within_s / self._deadline_s
            self._failed(error, 1.0 if share >= FAIR_SHARE else share)
            raise
        except Exception as error:
            self._failed(error, 1.0)
            raise self._unreachable(f"{self._name} does not answer ({type(error).__name__})") from None
        self._failures = 0.0
        return answer

    def _failed(self, error: Exception, weight: float) -> None:
        self._failures += weight
        if self._failures >= FAILURES_TO_OPEN and not self.is_open:
            self._open.set()
            self._report_down(error)

    def _report_down(self, error: Exception) -> None:
        now_s = time.monotonic()
        self._reported_down = now_s - self._reported_s >= REPORT_EVERY_S
        if self._reported_down:
            self._reported_s = now_s
            # Only the kind of an unexpected error: its message may hold a client's text or an address.
            why = str(error) if isinstance(error, PhasewiseError) else type(error).__name__
            logger.warning("%s does not answer (%s): requests do without until it does", self._name, why)

    async def _try_again(self) -> None:
        guard = ErrorGuard(f"reaching for {self._name}")
        reported_useless = False
        while True:
            await self._open.wait()
            await asyncio.sleep(TRY_AGAIN_EVERY_S)
            with guard, suppress(TimeoutError, self._unreachable):
                try:
                    await self._reach()
                    reported_useless = False
                except ConfigError as error:
                    if not reported_useless:
                        logger.error("%s came back and cannot be used: %s", self._name, error)
                    reported_useless = True

    async def _reach(self) -> None:
        async with asyncio.timeout(READY_WITHIN_S):
            await self._prepare()
        async with fair_deadline(self._deadline_s):
            await self._probe()
        self._failures = 0.0
        self._open.clear()
        if self._reported_down:
            logger.warning("%s answers again", self._name)
