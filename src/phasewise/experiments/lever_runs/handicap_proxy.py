"""Stand-ins for engines without features that no vLLM flag turns off: a KV cache, and continuous batching.

Each is a proxy in front of a real engine, so that everything else stays the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import ConfigError
from phasewise.core.request import Endpoint
from phasewise.core.units import bound
from phasewise.experiments.lever_runs.handicap_app import HandicapApp, HeldRequest, on_loopback, pass_through
from phasewise.experiments.lever_runs.recomputation import Recomputation, check_cache_is_off

# --- Static batches: requests start together, and no other starts until the last of them has ended.


class Waves:
    """Gathers requests into waves of at most `size`; one wave runs at a time.

    A wave begins when it is full, or when no wave runs and no request arrived for `linger_s`: clients that
    send their next request at the end of a wave are all in the next one.
    """

    def __init__(self, size: int, linger_s: float) -> None:
        if size < 1 or linger_s < 0:
            raise ConfigError(
                f"static batches of {size} that wait for {bound(linger_s)}",
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

        A request that is cancelled while waiting leaves the wave; a running wave accepts no replacement.
        """
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._gather()
        try:
            await turn
        except asyncio.CancelledError:
            # If it was admitted and cancelled at the same time, it is part of the wave; else it is not.
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
        """Begin a wave if it is full; else wait for more requests."""
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


@asynccontextmanager
async def recomputing(engine_url: str) -> AsyncIterator[str]:
    """The address of an engine without a KV cache: every token is computed from the prompt's beginning on.

    It streams greedy chats of up to 64 tokens. An engine with a prefix cache is rejected, as it would keep
    what must be computed again.
    """
    engine = HttpClient(engine_url)
    try:
        await check_cache_is_off(engine)
        async with on_loopback(HandicapApp(engine, {Endpoint.CHAT: Recomputation(engine)})) as url:
            yield url
    finally:
        engine.close()


@asynccontextmanager
async def static_batches(engine_url: str, size: int, linger_s: float = 0.05) -> AsyncIterator[str]:
    """The address of an engine with static batches: `size` requests start together, then no other.

    A batch that is not full starts when no request arrived for `linger_s`. The next one starts when the last
    request of the one before has ended. Such engines also pad: they compute for ended requests until the
    batch has ended. That is not imitated, so they look better here than they were.
    """
    waves = Waves(size, linger_s)
    engine = HttpClient(engine_url)

    async def in_a_wave(asked: HeldRequest) -> None:
        async with waves.place():
            await pass_through(engine, asked)

    try:
        async with on_loopback(HandicapApp(engine, dict.fromkeys(Endpoint, in_a_wave))) as url:
            yield url
    finally:
        engine.close()


@asynccontextmanager
async def passing_through(engine_url: str) -> AsyncIterator[str]:
    """The address of a proxy that takes nothing away: beside a stand-in, both sides then pay for the hop."""
    engine = HttpClient(engine_url)

    async def handed_on(asked: HeldRequest) -> None:
        await pass_through(engine, asked)

    try:
        async with on_loopback(HandicapApp(engine, dict.fromkeys(Endpoint, handed_on))) as url:
            yield url
    finally:
        engine.close()
