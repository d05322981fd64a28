"""Runs fake engines in a thread with its own event loop, so that tests share them like the real ones."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from tests.real_engine import RunningEngine


@contextmanager
def running_fake_engine(config: FakeEngineConfig) -> Iterator[RunningEngine]:
    """A fake engine that outlives the event loops of single tests."""
    with running_fake_engines(1, config) as (engine,):
        yield engine


@contextmanager
def running_fake_engines(count: int, config: FakeEngineConfig) -> Iterator[list[RunningEngine]]:
    """Fake engines that outlive the event loops of single tests."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    running: list[RunningEngine] = []

    async def serve() -> None:
        async with running_engines(count, config) as engines:
            for engine in engines:
                running.append(RunningEngine(engine.base_url, engine.steps_url, engine.model, os.getpid()))
            started.set()
            await stopping.wait()

    stopping = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        if not started.wait(10.0):
            raise RuntimeError("the fake engines did not start")
        yield running
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10.0)
        loop.close()
