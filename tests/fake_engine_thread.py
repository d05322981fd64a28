"""Runs one fake engine in a thread with its own event loop, so that tests share it like the real one."""

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
    loop = asyncio.new_event_loop()
    started = threading.Event()
    engines: list[RunningEngine] = []

    async def serve() -> None:
        async with running_engines(1, config) as (engine,):
            engines.append(RunningEngine(engine.base_url, engine.steps_url, engine.model, os.getpid()))
            started.set()
            await stopping.wait()

    stopping = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        if not started.wait(10.0):
            raise RuntimeError("the fake engine did not start")
        yield engines[0]
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10.0)
        loop.close()
