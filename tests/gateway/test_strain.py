"""What the gateway gives up first when its memory or its event loop is under strain."""

from __future__ import annotations

import asyncio
import time

import orjson
import pytest

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.overload import OverloadWatch, Stage, stage_of
from phasewise.simulator.requests import EngineShape
from tests.gateway.harness import eventually, running_gateway


@pytest.mark.parametrize(
    ("memory_share", "lag_s", "stage"),
    [
        (0.1, 0.0, Stage.NOTHING),
        (0.82, 0.0, Stage.KEEP_ALIVE),
        (0.1, 0.3, Stage.LARGE_BODIES),
        (0.91, 0.3, Stage.LOW_PRIORITY),
        (0.1, 1.5, Stage.EVERYTHING),
    ],
)
def test_the_stage_follows_the_worse_of_memory_and_delay(memory_share, lag_s, stage):
    assert stage_of(memory_share, lag_s) is stage


def test_one_long_stall_gives_nothing_up_and_a_lasting_one_does():
    watch = OverloadWatch(None, lambda: 0)
    watch.look(0.4, 0.4)
    assert watch.stage is Stage.NOTHING
    assert watch.take_longest_lag_s() == 0.4
    assert watch.take_longest_lag_s() == 0.0
    for _ in range(30):
        watch.look(0.4, 0.4)
    assert watch.stage is Stage.LARGE_BODIES
    for _ in range(60):
        watch.look(0.0, 0.0)
    assert watch.stage is Stage.NOTHING


def test_time_that_the_host_took_away_is_not_the_gateways():
    watch = OverloadWatch(None, lambda: 0)
    for _ in range(100):
        watch.look(2.0, 0.001)
    assert watch.stage is Stage.NOTHING


def test_memory_is_held_against_its_limit():
    watch = OverloadWatch(1_000, lambda: 960)
    watch.look(0.0, 0.0)
    assert watch.stage is Stage.EVERYTHING


def rejected(watch, priority=0, lowest=-1, body_bytes=100):
    try:
        watch.check(priority, lowest, body_bytes)
    except RequestRejected as rejection:
        return rejection.kind
    return None


def test_who_is_rejected_at_which_stage():
    watch = OverloadWatch(None, lambda: 0)
    watch.stage = Stage.LARGE_BODIES
    assert rejected(watch) is None
    assert rejected(watch, body_bytes=10**6) is rejected(watch, body_bytes=None) is RejectionKind.OVERLOADED
    watch.stage = Stage.LOW_PRIORITY
    assert rejected(watch) is None
    assert rejected(watch, priority=-1) is RejectionKind.OVERLOADED
    watch.stage = Stage.EVERYTHING
    assert rejected(watch) is RejectionKind.OVERLOADED


async def test_under_strain_connections_close_and_then_requests_are_rejected():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        watch = gateway.app.gateway.overload
        assert b"connection" not in dict((await gateway.chat()).headers)
        for stage, status in ((Stage.KEEP_ALIVE, 200), (Stage.EVERYTHING, 503)):
            watch.stage = stage
            watch.on_stage(stage)
            reply = await gateway.chat()
            assert reply.status == status
            assert dict(reply.headers)[b"connection"] == b"close"
            watch.stage = Stage.NOTHING
        assert orjson.loads(reply.body)["error"]["code"] == "overloaded"
        assert dict(reply.headers)[b"retry-after"] == b"1"


async def test_a_blocked_loop_shows_in_the_metrics():
    async with running_engines(1) as engines, running_gateway(engines, watches_loop=True) as gateway:
        await asyncio.sleep(0.3)
        until_s = time.thread_time() + 0.3
        while time.thread_time() < until_s:
            pass
        await asyncio.sleep(0.3)
        rows = (await gateway.fetch("GET", "/metrics")).body.decode().splitlines()
        lag_s = next(row.split()[1] for row in rows if row.startswith("phasewise_event_loop_lag_seconds "))
        assert float(lag_s) >= 0.1


async def test_one_tenant_holds_at_most_half_of_the_memory_for_bodies():
    keys = [{"sha256": key_sha256(name), "tenant": name} for name in ("a", "b")]
    shape = EngineShape(max_model_len=1_000_000, total_blocks=20_000)
    async with (
        running_engines(1, FakeEngineConfig(shape=shape)) as (engine,),
        running_gateway(
            [engine],
            api_keys=keys,
            limits={"bodies": "2MiB", "body": "1MiB"},
            slo_classes=[{"max_wait_s": 1.0}],
        ) as gateway,
    ):
        reservations = gateway.app.gateway.pipeline._reservations

        def asks(key):
            headers = [(b"authorization", b"Bearer " + key)]
            return asyncio.create_task(gateway.chat("x" * 700_000, headers=headers))

        engine.inject("core_hang")
        waiting = asks(b"a")
        await eventually(lambda: reservations.reserved_bytes)
        assert (await asks(b"a")).status == 503
        other = asks(b"b")
        await eventually(lambda: reservations.reserved_bytes > 1_000_000)
        engine.clear_faults()
        for asked in (waiting, other):
            asked.cancel()
        await asyncio.gather(waiting, other, return_exceptions=True)
        await eventually(lambda: not reservations.reserved_bytes)
