"""A gateway shows what is slow now, once a second, to admins, and computes nothing while nobody looks."""

import asyncio
from contextlib import asynccontextmanager

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.clients.sse import EventSplitter
from phasewise.diagnosis.live.snapshot import LiveState, RequestStatus, snapshot_from
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, SloClass
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import ADMIN, QUICK, eventually, running_gateway

LIVE = "/phasewise/v1/live"
EVENTS = [*ADMIN, (b"accept", b"text/event-stream")]


async def snapshot_of(gateway, query=""):
    reply = await gateway.fetch("GET", f"{LIVE}{query}", headers=ADMIN)
    assert reply.status == 200, reply.body
    return snapshot_from(orjson.loads(reply.body))


@asynccontextmanager
async def following(gateway):
    """A queue of the snapshots that a second client gets."""
    client, found = HttpClient(gateway.url, QUICK), asyncio.Queue()

    async def read():
        events = EventSplitter()
        async with await client.send("GET", LIVE, headers=EVENTS) as reply:
            while data := await reply.read():
                for event in events.feed(data):
                    found.put_nowait(snapshot_from(orjson.loads(event.removeprefix(b"data: "))))
        found.put_nowait(None)

    reading = asyncio.create_task(read())
    try:
        yield found
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        client.close()


async def asked(gateway, count=6, **fields):
    kept = len(gateway.app.gateway.timelines)
    for _ in range(count):
        await gateway.chat(max_tokens=8, ignore_eos=True, stream=True, **fields)
    await eventually(lambda: len(gateway.app.gateway.timelines) >= kept + count)


async def test_requests_that_ended_before_anybody_looked_are_counted_once():
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        await asked(gateway)
        for _ in range(2):
            found = await snapshot_of(gateway)
            assert (found.start.requests, found.stream.requests) == (6, 6)
            assert found.state is LiveState.HEALTHY
            assert sum(it.seconds for it in found.start.parts) == pytest.approx(found.start.mean_s)
        assert {it.name for it in found.engines} == {"w0", "w1"}
        assert all(it.running == 0 and it.kv_usage is not None for it in found.engines)
        assert len({it.request_id for it in found.requests}) == len(found.requests) >= 3


async def test_the_stream_counts_requests_as_they_end_and_rates_of_engines():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        async with following(gateway) as snapshots:
            assert (await snapshots.get()).start is None
            await asked(gateway)
            found = await snapshots.get()
            while found.start is None or found.start.requests < 6:
                found = await snapshots.get()
            assert found.start.requests == 6
            assert found.engines[0].ttft_s > 0
        assert gateway.app.gateway.live.view._running is None or await eventually(
            lambda: gateway.app.gateway.live.view._running is None
        )


async def test_with_nobody_looking_nothing_is_kept():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        view = gateway.app.gateway.live.view
        await asked(gateway)
        assert (view._running, view._cpu_s, view._window._seconds) == (None, 0.0, {})


async def test_the_objective_is_the_classs_own_or_the_one_that_is_asked_for():
    strict = (SloClass(name="default", ttft_s=0.00001, tpot_s=10.0),)
    async with running_engines(1) as engines, running_gateway(engines, slo_classes=strict) as gateway:
        await asked(gateway)
        own = await snapshot_of(gateway)
        assert (own.state, own.slo_ttft_s, own.start.over) == (LiveState.SLOW_TO_START, 0.00001, 6)
        assert own.phase_part is not None
        asked_for = await snapshot_of(gateway, "?slo=ttft%3D60s")
        assert (asked_for.state, asked_for.slo_ttft_s) == (LiveState.HEALTHY, 60.0)
        bad = await gateway.fetch("GET", f"{LIVE}?slo=x", headers=ADMIN)
        assert (bad.status, orjson.loads(bad.body)["error"]["param"]) == (400, "slo")


async def test_a_stream_that_stands_still_is_shown_with_what_holds_it():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        engine.inject("core_hang", after_tokens=40)
        hanging = asyncio.create_task(gateway.chat(max_tokens=400, ignore_eos=True, stream=True))

        async def still():
            rows = (await snapshot_of(gateway)).requests
            return next((it for it in rows if it.status is RequestStatus.STANDS_STILL), None)

        found = await eventually(still)
        assert (found.engine, found.held_by) == ("w0", "not observed")
        assert found.silent_s >= 1.0
        hanging.cancel()


async def test_tenants_that_queue_are_counted():
    keys = tuple(ApiKey(sha256=key_sha256(name), tenant=name) for name in ("shop", "lab"))
    async with running_engines(1) as (engine,):
        worker = {"api_keys": keys}
        async with running_gateway([engine], **worker) as gateway:
            engine.inject("core_hang")
            headers = [(b"authorization", b"Bearer shop")]
            tasks = [asyncio.create_task(gateway.chat(headers=headers, stream=True)) for _ in range(3)]
            await eventually(lambda: len(gateway.app.gateway.open_requests) == 3)
            found = await snapshot_of(gateway)
            assert [(it.tenant, it.open_requests, it.waiting) for it in found.tenants] == [("shop", 3, 0)]
            for task in tasks:
                task.cancel()


async def test_only_admins_see_it():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        assert (await gateway.fetch("GET", LIVE)).status == 401
    async with running_engines(1) as engines, running_gateway(engines, admin_key_sha256=None) as gateway:
        assert (await gateway.fetch("GET", LIVE, headers=ADMIN)).status == 403
        assert (await gateway.fetch("GET", "/phasewise/")).status == 403


async def test_the_stream_ends_when_the_gateway_stops():
    async with (
        running_engines(1) as engines,
        running_gateway(engines) as gateway,
        following(gateway) as snapshots,
    ):
        await snapshots.get()
        gateway.app.edge.stopping = True
        async with asyncio.timeout(10):
            while await snapshots.get() is not None:
                pass
