"""A watch sees every engine at once and trips over none that is slow, silent, restarted or out of reach."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from phasewise.clients.http_client import Timeouts
from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.gather import engine_watch
from phasewise.diagnosis.gather import watch as watch_module
from phasewise.diagnosis.gather.target import WatchTarget, identify
from phasewise.diagnosis.gather.watch import GatherOrder, Watch, gather
from phasewise.diagnosis.observed.observation import TargetKind, WatchedEngine
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import CacheConfig
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.requests import PRESETS
from tests.costs.fits import make_fit
from tests.gateway.harness import ADMIN_KEY, eventually, running_gateway
from tests.raw_server import raw_server
from tests.real_engine import free_port

NO_RECORDER = f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def ticks(monkeypatch):
    """Time goes by fifty times as fast for those who are asked every second."""
    monkeypatch.setattr(engine_watch, "TICK_S", 0.02)


@asynccontextmanager
async def watched(target, admin_key=None):
    watch = Watch(target, admin_key)
    try:
        await watch.begin()
        yield watch
    finally:
        watch.close()


@asynccontextmanager
async def mute_engine():
    """It takes every connection and never says a word."""

    async def listen(reader, writer):
        await asyncio.Event().wait()

    async with raw_server(listen) as port:
        yield f"http://127.0.0.1:{port}"


def target_of(*urls, steps=None):
    engines = tuple(WatchedEngine(f"e{index}", url, steps or url) for index, url in enumerate(urls))
    return WatchTarget(urls[0], TargetKind.ENGINE, engines)


async def test_fifty_engines_are_watched_at_once(ticks, monkeypatch):
    monkeypatch.setattr(engine_watch, "ANSWERS_WITHIN_S", 60.0)
    for name in ("_PATIENCE", "QUICK"):
        monkeypatch.setattr(engine_watch, name, Timeouts(connect_s=60.0, head_s=60.0, idle_s=60.0))
    async with (
        running_engines(50) as engines,
        watched(target_of(*(engine.base_url for engine in engines))) as watch,
    ):
        await asyncio.sleep(0.1)
        evidence = evidence_of(await watch.end())
    assert [it.name for it in evidence.surroundings] == [f"e{index}" for index in range(50)]
    assert all(it.kv_tokens and it.round_trip_s and it.prefix_cache_on for it in evidence.surroundings)
    assert all(it.host_busy_share is not None for it in evidence.surroundings)
    assert len(evidence.metrics) == 50


async def test_an_engine_that_never_answers_takes_nothing_from_the_others(ticks, monkeypatch):
    monkeypatch.setattr(engine_watch, "ANSWERS_WITHIN_S", 3.0)
    async with (
        mute_engine() as mute,
        running_engines(1) as (engine,),
        watched(target_of(mute, engine.base_url)) as watch,
    ):
        await asyncio.sleep(0.1)
        evidence = evidence_of(await watch.end())
    silent, heard = evidence.surroundings
    assert (silent.kv_tokens, silent.round_trip_s) == (None, None)
    assert heard.kv_tokens
    assert heard.round_trip_s
    assert any("1 of 2 engines: no answer from e" in it for it in evidence.not_observed)


async def test_gauges_are_asked_all_along_where_there_is_no_recorder(ticks):
    slow = FakeEngineConfig(cost=PRESETS["cpu-demo"])
    async with (
        running_engines(1, slow) as (engine,),
        running_gateway([engine]) as gateway,
        watched(target_of(engine.base_url, steps=NO_RECORDER)) as watch,
    ):
        await asyncio.gather(*(gateway.chat(max_tokens=40) for _ in range(3)))
        evidence = evidence_of(await watch.end())
    (found,) = evidence.surroundings
    assert found.steps is None
    assert found.engine_load.running_max == 3
    assert found.requests == 3
    summary = diagnose(evidence, DEFAULT_SLO, Known()).summary
    assert summary.engines == evidence.surroundings
    # At the end nobody ran any more: only readings during the window show it.
    assert summary.workload.running_mean > 0


async def test_a_request_under_way_is_seen_with_those_that_ended():
    slow = FakeEngineConfig(cost=PRESETS["cpu-demo"])
    async with running_engines(1, slow) as (engine,), running_gateway([engine]) as gateway:
        async with watched(await identify(gateway.url, ADMIN_KEY), ADMIN_KEY) as watch:
            assert (await gateway.chat(max_tokens=1)).status == 200
            under_way = asyncio.create_task(gateway.chat(max_tokens=200, stream=True))
            await asyncio.sleep(0.3)
            evidence = evidence_of(await watch.end())
        under_way.cancel()
    assert [it.outcome for it in evidence.timelines] == [Outcome.SUCCEEDED, Outcome.UNFINISHED]
    assert not any("when the window closed" in note for note in evidence.not_observed)
    assert diagnose(evidence, DEFAULT_SLO, Known()).summary.outcomes == (("succeeded", 1), ("unfinished", 1))


async def test_what_the_answer_cache_served_is_no_evidence_of_engines():
    short = FakeEngineConfig(shape=EngineShape(mean_output_tokens=8))
    async with (
        running_engines(1, short) as engines,
        running_gateway(engines, cache=CacheConfig(mode="serve")) as gateway,
        watched(await identify(gateway.url, ADMIN_KEY), ADMIN_KEY) as watch,
    ):

        async def hit():
            reply = await gateway.chat(max_tokens=500)
            return b"hit" in dict(reply.headers)[b"cache-status"]

        await eventually(hit)
        evidence = evidence_of(await watch.end())
    assert evidence.timelines
    assert not any(it.from_cache for it in evidence.timelines)
    assert any("that the answer cache served" in note for note in evidence.not_observed)


async def test_a_gateway_shows_the_counters_of_engines_that_are_out_of_our_reach():
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        target = await identify(gateway.url, ADMIN_KEY)
        hidden = tuple(replace(it, url=NO_RECORDER, steps_url=None) for it in target.engines)
        async with watched(replace(target, engines=hidden), ADMIN_KEY) as watch:
            for _ in range(3):
                await gateway.chat(stream=True)
            evidence = evidence_of(await watch.end())
    assert len(evidence.timelines) == 3
    assert sum(it.requests for it in evidence.surroundings) == 3
    assert sum(it.counter("request_success_total") for it in evidence.metrics) == 3
    assert not any("no answer from" in it for it in evidence.not_observed)
    assert any("the CPU waits of 2 of 2 engines" in note for note in evidence.not_observed)
    assert diagnose(evidence, DEFAULT_SLO, Known()).summary.start.requests == 3


async def test_an_engine_that_was_restarted_within_the_window_is_reported(ticks):
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        await gateway.chat()
        async with watched(target_of(engine.base_url)) as watch:
            await engine.restart()
            evidence = evidence_of(await watch.end())
    assert "the counters of 1 of 1 engines: they restarted within the window" in evidence.not_observed
    assert evidence.surroundings[0].prefix_queries_tokens is None


async def test_saved_costs_come_before_the_windows_own():
    async with running_engines(1) as (engine,), watched(target_of(engine.base_url)) as watch:
        evidence = evidence_of(await watch.end())
    assert diagnose(evidence, DEFAULT_SLO, Known()).summary.fit is None
    saved = make_fit(weights_read_s=0.03)
    summary = diagnose(evidence, DEFAULT_SLO, Known(saved)).summary
    assert summary.fit == saved
    assert [engine.weights_read_s for engine in summary.engines] == [0.03]


class Said:
    """What a user would see."""

    def __init__(self):
        self.words = []

    def say(self, words):
        self.words.append(words)

    @asynccontextmanager
    async def watching(self, window_s):
        yield


@pytest.mark.parametrize("through_gateway", [False, True])
async def test_a_window_of_no_given_length_lasts_until_enough_requests_ended(monkeypatch, through_gateway):
    monkeypatch.setattr(watch_module, "SHORTEST_S", 1.5)
    monkeypatch.setattr(watch_module, "TIMELINES_EVERY_S", 0.1)
    monkeypatch.setattr(watch_module, "ENOUGH_REQUESTS", 4)
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:

        async def ask_again_and_again():
            while True:
                await gateway.chat(max_tokens=4)
                await asyncio.sleep(0.7)

        url = gateway.client.base_url if through_gateway else engine.base_url
        target = await identify(url, ADMIN_KEY if through_gateway else None)
        asking, said = asyncio.create_task(ask_again_and_again()), Said()
        try:
            seen = await gather(target, ADMIN_KEY if through_gateway else None, GatherOrder(), said)
        finally:
            asking.cancel()
        assert 1.5 < seen.ended_unix_s - seen.began_unix_s < 50
        assert [words for words in said.words if "few requests have ended" in words]


async def test_nobody_waits_longer_for_traffic_that_is_not_there_or_was_given_a_length(monkeypatch):
    monkeypatch.setattr(watch_module, "SHORTEST_S", 0.5)
    async with running_engines(1) as (engine,):
        target = await identify(engine.base_url, None)
        for order in (GatherOrder(), GatherOrder(window_s=0.5)):
            said = Said()
            await gather(target, None, order, said)
            assert len(said.words) == 1
