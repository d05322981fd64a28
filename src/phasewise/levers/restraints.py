"""Stand-ins for engines that lack what no flag of vLLM takes away: a KV cache, and continuous batching.

Each is a proxy before a real engine, so that all else is the engine's own. How they behave stands in
recomputation.py and waves.py; who is measured through them is left to the procedure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from phasewise.adapters.http_client import HttpClient
from phasewise.levers.recomputation import Recomputation, check_cache_is_off
from phasewise.levers.restrained_app import Asked, RestrainedApp, on_loopback, pass_through
from phasewise.levers.waves import Waves
from phasewise.model.request import Endpoint


@asynccontextmanager
async def recomputing(engine_url: str) -> AsyncIterator[str]:
    """The address of an engine without a KV cache: every token is computed from the prompt's beginning on.

    It streams greedy chats of up to 64 tokens. An engine with a prefix cache is refused, as it would keep
    what is to be computed again.
    """
    engine = HttpClient(engine_url)
    try:
        await check_cache_is_off(engine)
        async with on_loopback(RestrainedApp(engine, {Endpoint.CHAT: Recomputation(engine)})) as url:
            yield url
    finally:
        engine.close()


@asynccontextmanager
async def static_batches(engine_url: str, size: int, linger_s: float = 0.05) -> AsyncIterator[str]:
    """The address of an engine that works in static batches: `size` requests go in together, then nobody.

    A batch that is not full starts when nobody came for `linger_s`. The next one starts when the last
    request of the one before has ended. Engines of that kind also pad: they compute for requests that have
    ended until the batch has. That is not imitated, so they look better here than they were.
    """
    waves = Waves(size, linger_s)
    engine = HttpClient(engine_url)

    async def in_a_wave(asked: Asked) -> None:
        async with waves.place():
            await pass_through(engine, asked)

    try:
        async with on_loopback(RestrainedApp(engine, dict.fromkeys(Endpoint, in_a_wave))) as url:
            yield url
    finally:
        engine.close()


@asynccontextmanager
async def passing_through(engine_url: str) -> AsyncIterator[str]:
    """The address of a proxy that takes nothing away: beside a stand-in, both sides then pay for the hop."""
    engine = HttpClient(engine_url)

    async def handed_on(asked: Asked) -> None:
        await pass_through(engine, asked)

    try:
        async with on_loopback(RestrainedApp(engine, dict.fromkeys(Endpoint, handed_on))) as url:
            yield url
    finally:
        engine.close()
