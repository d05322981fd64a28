"""A deadline for waiting on others that does not blame them for this process's own delays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_TURNS_OF_GRACE = 3
"""In one turn of the loop what has arrived is received, in the next who waits for it is told."""


@asynccontextmanager
async def fair_deadline(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the block after so many seconds.

    After a stall of the loop the time is over before an answer that came in time has been looked at: so it is
    looked at first.
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
