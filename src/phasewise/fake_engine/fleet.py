"""Several fake engines in one process and event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig


@asynccontextmanager
async def running_engines(
    count: int = 1, config: FakeEngineConfig | None = None
) -> AsyncIterator[list[FakeEngine]]:
    """Engines that differ only in their noise and their ports.

    Ports are consecutive from `config.port`, or free ones for port 0.
    """
    config = config or FakeEngineConfig()
    engines = [FakeEngine(_numbered(config, index)) for index in range(count)]
    async with AsyncExitStack() as stack:
        for engine in engines:
            stack.push_async_callback(engine.stop)
            await engine.start()
        yield engines


async def run_engines(
    count: int, config: FakeEngineConfig, on_ready: Callable[[list[FakeEngine]], None]
) -> None:
    """Run engines until cancelled; `on_ready` is called when all of them listen."""
    async with running_engines(count, config) as engines:
        on_ready(engines)
        await asyncio.Event().wait()


def _numbered(config: FakeEngineConfig, index: int) -> FakeEngineConfig:
    port = config.port + index if config.port else 0
    steps_port = config.steps_port + index if config.steps_port else config.steps_port
    jitter = config.jitter and config.jitter.of_engine(index)
    return replace(config, port=port, steps_port=steps_port, jitter=jitter)
