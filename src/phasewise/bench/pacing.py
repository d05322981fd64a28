"""The generator's clock: waiting until a moment, and noticing when the event loop came late to it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT_S = 0.02
TIMER_S = 0.001
"""Event loops keep timers in whole milliseconds: so late is nobody's lag."""


def now_s() -> float:
    """Seconds of a clock that never jumps.

    Not the event loop's: uvloop's stands still within an iteration and counts milliseconds.
    """
    return time.perf_counter()


async def wait_until(due_s: float) -> None:
    """Return at `due_s` or as soon after it as can be, never before."""
    while (ahead_s := due_s - now_s()) > 0:  # noqa: ASYNC110 - no event tells that it is time
        # Timers are kept in whole milliseconds and may fire early; what is left is too short to sleep.
        await asyncio.sleep(ahead_s if ahead_s > 0.0005 else 0)


async def watch_loop(lags_s: list[float]) -> None:
    """Note, until cancelled, how late the event loop comes to a timer: so late are chunks stamped too."""
    while True:
        asked_s = now_s()
        await asyncio.sleep(HEARTBEAT_S)
        lags_s.append(max(now_s() - asked_s - HEARTBEAT_S - TIMER_S, 0.0))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep Python's collector from stopping the generator for milliseconds in the middle of a run."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
