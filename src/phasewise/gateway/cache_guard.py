"""Asks a part of the cache in time, and leaves it alone while it does not answer.

Once its breaker is open a dead part costs requests nothing; trying it again is a task's of its own. What a
request does without the part is answer_cache.py's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from phasewise.adapters.fair_deadline import fair_deadline
from phasewise.errors import ConfigError, PhasewiseError
from phasewise.gateway.guard import Guard

FAILURES_TO_OPEN = 3
"""In a row: one late answer may be anybody's fault."""
FAIR_SHARE = 0.5
"""Of the deadline: whoever had that long and did not answer has failed; with less, by as much."""
TRY_AGAIN_EVERY_S = 1.0
TELL_EVERY_S = 10.0
"""A part that comes and goes is not told of more often."""
READY_WITHIN_S = 5.0
"""Nobody waits for a part that is made ready in the background."""
PROBE = "probe"
"""What is asked for to try a part: nobody's."""

logger = logging.getLogger("phasewise.gateway")

_Answer = TypeVar("_Answer")


class Breaker:
    """Stands before one part, `name`, whose failures are `unreachable`.

    `prepare` makes the part ready, at start and again before it is used after a failure; `probe` asks it
    something small, which it must answer within `deadline_s` before requests may ask it again. Errors that
    are `excused` cost nobody time and are no reason to leave it alone.
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
        self._open = True
        self._failures = 0.0
        self._told_useless = self._told_down = False
        self._told_s = -TELL_EVERY_S
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the part is left alone, because it does not answer."""
        return self._open

    async def start(self) -> None:
        """Make the part ready, unless it is away for now; raises ConfigError for what will never work."""
        try:
            await self._reach()
        except ConfigError:
            raise
        except Exception as error:
            # Whatever it is, requests are answered without the part.
            self._tell_down(error)
            self._opened.set()
        self._task = asyncio.create_task(self._try_again())

    async def stop(self) -> None:
        """Try no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ask(
        self,
        call: Callable[[], Awaitable[_Answer]],
        within_s: float,
        excused: tuple[type[Exception], ...] = (),
    ) -> _Answer:
        """What the part answers; raises TimeoutError if it is late and the part's own error if it fails.

        Errors that are `excused` say nothing of what the part would do for others.
        """
        if self._open:
            raise self._unreachable(f"{self._name} does not answer")
        if within_s <= 0:
            raise TimeoutError
        try:
            async with fair_deadline(within_s):
                answer = await call()
        except (*self._excused, *excused):
            raise
        except TimeoutError as error:
            # Who was given little time, because another part took it, is little to blame; but one that never
            # answers in what is left to it would cost every request all of its time.
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
        if self._failures >= FAILURES_TO_OPEN and not self._open:
            self._open = True
            self._tell_down(error)
            self._opened.set()

    def _tell_down(self, error: Exception) -> None:
        # Only the kind of an error that was not foreseen: its words may be a client's, or hold an address.
        why = str(error) if isinstance(error, PhasewiseError) else type(error).__name__
        now_s = time.monotonic()
        self._told_down = now_s - self._told_s >= TELL_EVERY_S
        if self._told_down:
            self._told_s = now_s
            logger.warning("%s does not answer (%s): requests do without until it does", self._name, why)

    async def _try_again(self) -> None:
        guard = Guard(f"reaching for {self._name}")
        while True:
            await self._opened.wait()
            await asyncio.sleep(TRY_AGAIN_EVERY_S)
            with guard:
                await self._reach_quietly()

    async def _reach_quietly(self) -> None:
        try:
            await self._reach()
        except ConfigError as error:
            if not self._told_useless:
                self._told_useless = True
                logger.error("%s came back and cannot be used: %s", self._name, error)
        except (TimeoutError, self._unreachable):
            return
        if self._told_down and not self._open:
            logger.warning("%s answers again", self._name)

    async def _reach(self) -> None:
        async with asyncio.timeout(READY_WITHIN_S):
            await self._prepare()
        async with fair_deadline(self._deadline_s):
            await self._probe()
        self._failures = 0.0
        self._open = self._told_useless = False
        self._opened.clear()
