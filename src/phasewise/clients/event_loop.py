"""The event loop that commands run in, and a deadline on a peer that excludes the loop's own delays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

try:
    import uvloop
except ImportError:
    run = asyncio.run
else:
    run = uvloop.run
"""uvloop where it is installed, else asyncio's own."""

_TURNS_OF_GRACE = 3
"""One turn of the loop receives what has arrived, the next one wakes the waiting task."""


@asynccontextmanager
async def fair_deadline(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the block after this many seconds.

    After a stall of the loop, the time may be over before the loop has processed an answer that arrived in
    time. So the deadline first gives the loop a chance to process it.
    """
    loop = asyncio.get_running_loop()
    left = False

    def is_over(turns: int) -> None:
        if left:
            return
        if turns:
            loop.call_soon(is_over, turns - 1)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds, is_over, _TURNS_OF_GRACE)
        try:
            yield
        finally:
            left = True
            timer.cancel()
