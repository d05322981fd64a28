"""A window is as long as the traffic was looked at, whoever keeps silent; what got past it is said."""

import asyncio
import time
from dataclasses import replace

from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.gather import engine_watch
from phasewise.diagnosis.gather import watch as watch_module
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.gather.watch import Watch
from phasewise.diagnosis.observed.observation import WatchedEngine
from phasewise.fake_engine.fleet import running_engines
from tests.diagnosis.gather.test_watch import mute_engine, watched
from tests.gateway.harness import ADMIN_KEY, request_id_of, running_gateway

SILENT_S = 1.5


async def test_a_silent_engine_makes_the_window_no_longer(monkeypatch):
    monkeypatch.setattr(engine_watch, "ANSWERS_WITHIN_S", SILENT_S)
    async with mute_engine() as mute, running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        target = await identify(gateway.url, ADMIN_KEY)
        target = replace(target, engines=(*target.engines, WatchedEngine("mute", mute, None)))
        watch = Watch(target, ADMIN_KEY)
        opening = asyncio.create_task(watch.begin())
        try:
            await asyncio.sleep(SILENT_S / 2)
            await gateway.chat("before the window")
            await opening
            began_s = time.monotonic()
            within = request_id_of(await gateway.chat("within the window"))
            await gateway.timeline(within)
            open_s = time.monotonic() - began_s
            closing = asyncio.create_task(watch.end())
            await asyncio.sleep(SILENT_S / 2)
            await gateway.chat("after the window")
            evidence = evidence_of(await closing)
        finally:
            watch.close()
    assert [it.request_id for it in evidence.timelines] == [within]
    assert evidence.window_s < open_s + SILENT_S / 2
    (counted,) = evidence.metrics
    assert counted.histogram("time_to_first_token_seconds").count == 1


async def test_timelines_are_read_before_the_gateway_forgets_them(monkeypatch):
    monkeypatch.setattr(watch_module, "TIMELINES_EVERY_S", 0.01)
    async with (
        running_engines(1) as (engine,),
        running_gateway([engine], keep_timelines=1) as gateway,
        watched(await identify(gateway.url, ADMIN_KEY), ADMIN_KEY) as watch,
    ):
        ids = []
        for _ in range(4):
            ids.append(request_id_of(await gateway.chat()))
            await asyncio.sleep(0.3)
        evidence = evidence_of(await watch.end())
    assert [it.request_id for it in evidence.timelines] == ids
    assert not any("replaced by newer ones" in note for note in evidence.not_observed)


async def test_timelines_that_were_gone_before_we_came_are_reported():
    async with (
        running_engines(1) as (engine,),
        running_gateway([engine], keep_timelines=1) as gateway,
        watched(await identify(gateway.url, ADMIN_KEY), ADMIN_KEY) as watch,
    ):
        for _ in range(4):
            last = request_id_of(await gateway.chat())
        await gateway.timeline(last)
        evidence = evidence_of(await watch.end())
    assert [it.request_id for it in evidence.timelines] == [last]
    assert any(note.startswith("3 finished requests, replaced") for note in evidence.not_observed)
