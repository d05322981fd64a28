"""What goes wrong with the engines while streams run: one function per kind of fault.

Each is handed the engines, breaks them while it is awaited, and is cancelled when the streams have ended;
afterwards whatever does not serve is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from .mortal_engines import MortalEngine

BETWEEN_KILLS_S = 2.5
"""Longer than a stream and its engine's coming back: no stream is hit twice."""
POISON = "poison"

Scenario = Callable[[Sequence[MortalEngine]], Awaitable[None]]


async def kill(engines: Sequence[MortalEngine]) -> None:
    """kill -9 of one engine after the other; each is started again."""
    while True:
        for engine in engines:
            await asyncio.sleep(0.3)
            engine.kill()
            engine.start()
            await asyncio.sleep(BETWEEN_KILLS_S)


async def hang(engines: Sequence[MortalEngine]) -> None:
    """One engine takes connections but says nothing more."""
    await asyncio.sleep(0.3)
    await asyncio.to_thread(engines[0].inject, "hang", after_tokens=0)
    await asyncio.Event().wait()


async def cut(engines: Sequence[MortalEngine]) -> None:
    """One engine cuts answers in the middle, each after another number of tokens."""
    while True:
        for after in (1, 5, 17, 40):
            await asyncio.to_thread(engines[0].inject, "cut", after_tokens=after, times=1)
            await asyncio.sleep(0.05)


async def error(engines: Sequence[MortalEngine]) -> None:
    """One engine answers many requests with HTTP 500."""
    while True:
        await asyncio.to_thread(engines[0].inject, "error", times=1)
        await asyncio.sleep(0.05)


async def slow(engines: Sequence[MortalEngine]) -> None:
    """One engine's steps take five times as long."""
    await asyncio.to_thread(engines[0].inject, "slow", factor=5.0)
    await asyncio.Event().wait()


async def all_gone(engines: Sequence[MortalEngine]) -> None:
    """kill -9 of all engines at once; they come back after a second."""
    await asyncio.sleep(0.3)
    for engine in engines:
        engine.kill(wait=False)
    await asyncio.sleep(1.0)
    for engine in engines:
        engine.start()
    await asyncio.Event().wait()


async def poison(engines: Sequence[MortalEngine]) -> None:
    """Every engine dies of a prompt with a certain word in it, after some tokens of the answer."""
    for engine in engines:
        await asyncio.to_thread(engine.inject, "poison", marker=POISON, after_tokens=5)
    await asyncio.Event().wait()


SCENARIOS: dict[str, Scenario] = {
    "kill": kill,
    "hang": hang,
    "cut": cut,
    "error": error,
    "slow": slow,
    "all_gone": all_gone,
    "poison": poison,
}
