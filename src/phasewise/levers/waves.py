"""Static batches: requests are let in together, and nobody else until the last of them has ended.

It only says who may go when. What the requests are, and where they go, is left to whoever asks for a place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from phasewise.errors import ConfigError


class Waves:
    """Gathers requests into waves of at most `size`, of which one is under way at a time.

    A wave begins when it is full, or when nobody was under way and nobody came for `linger_s`: clients that
    answer the end of a wave with their next request are all in the next one.
    """

    def __init__(self, size: int, linger_s: float) -> None:
        if size < 1 or linger_s < 0:
            raise ConfigError(
                f"static batches of {size} that wait for {linger_s:g} s",
                hint="use 1 or more, and 0 s or more",
            )
        self._size = size
        self._linger_s = linger_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a wave, and be part of it until the block has ended.

        Whoever is cancelled while waiting is not waited for; a wave that has begun takes nobody in its stead.
        """
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._gather()
        try:
            await turn
        except asyncio.CancelledError:
            # Told to go and to leave at the same time, it is part of the wave; else nobody waits for it.
            if not turn.cancelled():
                self._leave()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._under_way -= 1
        self._gather()

    def _gather(self) -> None:
        """Begin a wave if it is full; else wait anew for those who may still come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._under_way or not self._waiting:
            return
        if len(self._waiting) >= self._size:
            self._begin()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._begin)

    def _begin(self) -> None:
        staying = [turn for turn in self._waiting if not turn.cancelled()]
        wave, self._waiting = staying[: self._size], deque(staying[self._size :])
        self._under_way = len(wave)
        for turn in wave:
            turn.set_result(None)
