"""A gateway shows what is slow now, once a second, to admins, and computes nothing while nobody looks."""

import asyncio
import base64
import re
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.clients.sse import EventSplitter
from phasewise.diagnosis.live.snapshot import LiveState, RequestStatus, snapshot_from
from phasewise.diagnosis.verdict import Ruling
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, SloClass
from phasewise.gateway.api.auth import key_sha256
from phasewise.report.diagnosis.words import RULINGS
from phasewise.simulator.requests import PRESETS
from tests.gateway.harness import ADMIN, ADMIN_KEY, PATIENT, eventually, request_id_of, running_gateway

LIVE = "/phasewise/v1/live"
EVENTS = [*ADMIN, (b"accept", b"text/event-stream")]


async def snapshot_of(gateway, query=""):
    reply = await gateway.fetch("GET", f"{LIVE}{query}", headers=ADMIN)
    assert reply.status == 200, reply.body
    return snapshot_from(orjson.loads(reply.body))


@asynccontextmanager
async def following(gateway):
    """A queue of the snapshots that a second client gets."""
    client, found = HttpClient(gateway.url, PATIENT), asyncio.Queue()

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
        assert not gateway.app.gateway.live.view._tasks or await eventually(
            lambda: not gateway.app.gateway.live.view._tasks
        )


def test_a_gateway_loads_no_rules_for_it():
    script = (
        "import sys, phasewise.gateway.app; print('numpy' in sys.modules, 'phasewise.report' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


async def test_with_nobody_looking_nothing_is_kept():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        view = gateway.app.gateway.live.view
        await asked(gateway)
        assert (view._tasks, view._cpu_s, len(view._new)) == (set(), 0.0, 0)


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


async def test_the_page_holds_no_secret_and_allows_its_own_script_alone():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.fetch("GET", "/phasewise/")
    headers = dict(reply.headers)
    policy = headers[b"content-security-policy"].decode()
    script = reply.body.partition(b"<script>")[2].partition(b"</script>")[0]
    digest = base64.b64encode(sha256(script).digest()).decode()
    assert (reply.status, headers[b"content-type"]) == (200, b"text/html; charset=utf-8")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert ADMIN_KEY.encode() not in reply.body
    assert not re.findall(rb"(?:src|href)=|https?://(?!www\.w3\.org/2000/svg)|innerHTML", reply.body)


def test_the_page_says_the_state_in_the_words_of_a_verdict():
    page = (files("phasewise.gateway.live") / "page.html").read_text()
    said = dict(re.findall(r"(\w+): \"([^\"]+)\"", page.partition("const WORDS = {")[2].partition("}")[0]))
    assert {name: words.lower() for name, words in said.items()} == {
        state.value: RULINGS[Ruling(state.value)] for state in LiveState
    }


async def test_a_window_that_has_passed_is_judged_by_the_rules_of_diagnose():
    slow = FakeEngineConfig(cost=replace(PRESETS["fast"], floor_s=0.3))
    async with running_engines(1, slow) as engines, running_gateway(engines) as gateway:
        began_s = time.time()
        await asyncio.gather(*(asked(gateway, 1) for _ in range(8)))
        await eventually(lambda: len(gateway.app.gateway.timelines) == 8)
        path = f"{LIVE}/verdict?since_unix_s={began_s}&until_unix_s={time.time()}"
        streaming = asyncio.create_task(gateway.fetch("GET", path, headers=ADMIN))
        await eventually(gateway.app.gateway.live._asking.locked)
        assert (await gateway.fetch("GET", path, headers=ADMIN)).status == 503
        reply = await streaming
        found = orjson.loads(reply.body)
        assert (reply.status, found["verdict"]) == (200, Ruling.SLOW_TO_STREAM)
        assert found["sentence"].startswith("SLOW TO STREAM")
        assert "did not answer" not in found["sentence"]
        assert found["html"].startswith("<!doctype html>")
        assert (await gateway.fetch("GET", f"{LIVE}/verdict", headers=ADMIN)).status == 400
        assert (await gateway.fetch("GET", path)).status == 401


async def test_a_request_is_drawn_while_it_runs_and_after_it_has_ended():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        request_id = request_id_of(await gateway.chat(max_tokens=8, ignore_eos=True, stream=True))
        await gateway.timeline(request_id)

        async def drawn(request_id):
            return await gateway.fetch("GET", f"/phasewise/v1/requests/{request_id}/page", headers=ADMIN)

        reply = await drawn(request_id)
        assert (reply.status, request_id in orjson.loads(reply.body)["html"]) == (200, True)
        engine.inject("core_hang", after_tokens=3)
        hanging = asyncio.create_task(gateway.chat(max_tokens=50, ignore_eos=True, stream=True))
        (open_id,) = await eventually(lambda: gateway.app.gateway.open_requests.oldest(1))
        reply = await drawn(open_id)
        assert (reply.status, "unfinished" in orjson.loads(reply.body)["html"]) == (200, True)
        assert (await drawn("f" * 32)).status == 404
        hanging.cancel()
