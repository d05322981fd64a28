"""What the gateway gives up first when its own memory or event loop comes under strain.

Stages, each with those before it: connections close after their answer, large bodies are rejected, keys of
the lowest priority are rejected, everything is rejected. Requests that were let in go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable
from enum import IntEnum

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.gateway.guard import ErrorGuard

logger = logging.getLogger("phasewise.gateway")

MEMORY_SHARES = (0.80, 0.85, 0.90, 0.95)
"""Of the memory limit, from which each stage holds."""
LAGS_S = (0.1, 0.25, 0.5, 1.0)
"""The event loop's delay, about a second's mean."""
LOOK_EVERY_S = 0.1
SMOOTHED_OVER = 10
LARGE_BODY_BYTES = 64 * 1024


class Stage(IntEnum):
    """How much is given up."""

    NOTHING = 0
    KEEP_ALIVE = 1
    LARGE_BODIES = 2
    LOW_PRIORITY = 3
    EVERYTHING = 4


def stage_of(memory_share: float, lag_s: float) -> Stage:
    """The stage for a share of the memory limit and a delay of the event loop: the higher of both."""
    return Stage(max(bisect_right(MEMORY_SHARES, memory_share), bisect_right(LAGS_S, lag_s)))


class OverloadWatch:
    """Measures memory and the event loop's delay, and says what is given up now.

    `lag_s` is the smoothed delay, `longest_lag_s` the longest since it was last taken. Only the gateway's own
    work counts: a delay in which its thread did not run is the host's.
    """

    def __init__(self, memory_limit_bytes: int | None, memory_bytes: Callable[[], int]) -> None:
        self.stage = Stage.NOTHING
        self.lag_s = 0.0
        self._longest_lag_s = 0.0
        self.memory_limit_bytes = memory_limit_bytes
        self._memory_bytes = memory_bytes
        self._memory_share = 0.0
        self._looks = 0
        self.on_stage: Callable[[Stage], None] = lambda _stage: None

    def take_longest_lag_s(self) -> float:
        """The longest delay since the last call."""
        longest_s, self._longest_lag_s = self._longest_lag_s, 0.0
        return longest_s

    def look(self, late_s: float, worked_s: float) -> None:
        """A timer was this late, and the thread worked this long since it was set."""
        lag_s = max(0.0, min(late_s, worked_s))
        self._longest_lag_s = max(self._longest_lag_s, lag_s)
        self.lag_s += (lag_s - self.lag_s) / SMOOTHED_OVER
        if self._looks % SMOOTHED_OVER == 0 and self.memory_limit_bytes is not None:
            self._memory_share = self._memory_bytes() / self.memory_limit_bytes
        self._looks += 1
        stage = stage_of(self._memory_share, self.lag_s)
        if stage is not self.stage:
            given_up = stage.name.lower().replace("_", " ")
            message = "the event loop is %.0f ms late, %.0f%% of the memory limit are used; given up now: %s"
            logger.warning(message, self.lag_s * 1e3, self._memory_share * 100, given_up)
            self.stage = stage
            self.on_stage(stage)

    def check(self, priority: int, lowest_priority: int, body_bytes: int | None) -> None:
        """Reject a request that is given up now; None is a body whose size is unknown beforehand."""
        is_low = self.stage >= Stage.LOW_PRIORITY and priority <= lowest_priority
        if self.stage >= Stage.EVERYTHING or is_low:
            limit = ""
        elif self.stage >= Stage.LARGE_BODIES and (body_bytes is None or body_bytes > LARGE_BODY_BYTES):
            limit = ", and takes no large bodies now"
        else:
            return
        raise RequestRejected(
            RejectionKind.OVERLOADED,
            f"the gateway has more work than it can do{limit}",
            hint="try again soon; the operator sees why in phasewise_overload_stage",
        )

    async def run(self) -> None:
        """Look until cancelled."""
        guard = ErrorGuard("watching the event loop")
        while True:
            due_s, worked_s = time.monotonic() + LOOK_EVERY_S, time.thread_time()
            await asyncio.sleep(LOOK_EVERY_S)
            with guard:
                self.look(time.monotonic() - due_s, time.thread_time() - worked_s)
