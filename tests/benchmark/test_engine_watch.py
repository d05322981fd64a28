from __future__ import annotations

import asyncio
import socket

from phasewise.benchmark import engine_watch
from phasewise.benchmark.engine_watch import EngineSampler, watching
from phasewise.benchmark.target import Target
from phasewise.clients import step_feed
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from tests.benchmark.scripted_server import Asked, scripted_server


async def test_a_long_run_keeps_ever_fewer_pages_and_always_the_first_and_the_last(monkeypatch):
    monkeypatch.setattr(engine_watch, "MOST_PAGES", 4)
    async with running_engines(1, FakeEngineConfig()) as (engine,):
        client = HttpClient(engine.base_url)
        watch = EngineSampler(steps_url=None)
        times_s = []
        for _ in range(12):
            await watch.sample(client)
            times_s.append(watch._pages[-1][0])
        record = await watch.record()
        client.close()
    kept = [snapshot.taken_at_unix_s for snapshot in record.snapshots]
    assert len(kept) <= 4
    assert (kept[0], kept[-1]) == (times_s[0], times_s[-1])


async def test_an_address_without_counters_is_asked_once(monkeypatch):
    monkeypatch.setattr(engine_watch, "SAMPLE_EVERY_S", 0.01)
    asked: list[str] = []

    def answer(request: Asked):
        asked.append(request.path)
        return 404, [b"{}"]

    async with scripted_server(answer) as url, watching(Target(url, "m")) as watch:
        for _ in range(5):
            await watch.sample(HttpClient(url))
    assert asked == ["/metrics"]
    assert await watch.record() is None


async def test_a_silent_stranger_at_the_guessed_steps_address_does_not_hold_up_the_run(
    monkeypatch,
):
    monkeypatch.setattr(step_feed, "TIMEOUTS", Timeouts(head_s=0.05))
    # The kernel takes connections for a socket that listens, whether or not anybody accepts them.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        watch = EngineSampler(f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with asyncio.timeout(60):
            assert await watch.record() is None
