"""What a client sees when an engine dies, hangs, cuts, is slow, errs or is poisoned."""

from __future__ import annotations

import asyncio
import time

import orjson
import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.costs.fit.step import StepCost
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fake_engine.fleet import running_engines
from tests.contract.engine_calls import CHAT, STREAM, chat_body, post, post_json, steps, stream
from tests.gateway.harness import eventually

TEN_MS_STEPS = StepCost(0.01, 10_000, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
async def engine():
    async with running_engines(1) as (engine,):
        yield engine


@pytest.fixture
async def client(engine):
    client = HttpClient(engine.base_url, Timeouts(connect_s=1, head_s=5, idle_s=5))
    yield client
    client.close()


def body_of(engine, **fields):
    return chat_body(engine.model, **{"max_tokens": 20, **STREAM, **fields})


async def tokens_until_it_breaks(client, body):
    """How many tokens came, and how the stream broke."""
    seen = b""
    try:
        async with await client.send("POST", CHAT, body=body) as reply:
            while part := await reply.read():
                seen += part
    except UpstreamError as error:
        return seen.count(b'"content":" t'), error.kind
    return seen.count(b'"content":" t'), None


async def test_a_cut_stream_has_as_many_tokens_as_were_told(client, engine):
    engine.inject("cut", after_tokens=7, times=1)
    assert await tokens_until_it_breaks(client, body_of(engine)) == (7, FailureKind.CLOSED)
    assert await tokens_until_it_breaks(client, body_of(engine)) == (20, None)


async def test_a_cut_before_the_first_token_is_no_answer_at_all(client, engine):
    engine.inject("cut", times=1)
    with pytest.raises(UpstreamError) as broken:
        await post(client, CHAT, chat_body(engine.model))
    assert broken.value.kind is FailureKind.CLOSED


async def test_a_cut_request_is_aborted(client, engine):
    engine.inject("cut", after_tokens=2, times=1)
    await tokens_until_it_breaks(client, body_of(engine, max_tokens=5000))
    await asyncio.sleep(0.05)
    assert not engine.engine.has_work
    engine.engine.check_invariants()


async def test_a_death_drops_every_stream_and_rejects_new_ones(client, engine):
    engine.inject("die", after_tokens=12)
    seen = await asyncio.gather(*(tokens_until_it_breaks(client, body_of(engine)) for _ in range(3)))
    assert {kind for _, kind in seen} == {FailureKind.CLOSED}
    assert not engine.alive
    with pytest.raises(UpstreamError) as broken:
        await client.fetch("GET", "/health")
    assert broken.value.kind in {FailureKind.CONNECTION_REFUSED, FailureKind.CLOSED}


async def test_only_the_one_that_is_told_dies():
    async with running_engines(3) as engines:
        engines[1].die()
        await asyncio.sleep(0.01)
        for engine in (engines[0], engines[2]):
            client = HttpClient(engine.base_url)
            assert (await client.fetch("GET", "/health")).status == 200
            client.close()
        assert [engine.alive for engine in engines] == [True, False, True]


async def test_a_restart_is_another_incarnation_on_the_same_port(engine, client):
    await post_json(client, CHAT, chat_body(engine.model))
    before, _ = await steps(client)
    port = engine.port
    await engine.restart()
    after, records = await steps(client)
    assert engine.port == port
    assert before["boot"] != after["boot"] == engine.boot
    assert records == []


async def test_an_engine_comes_back_by_itself_when_told_so(engine, client):
    engine.inject("die", restart_after_s=0.05)
    assert not engine.alive
    await asyncio.sleep(0.2)
    assert (await client.fetch("GET", "/health")).status == 200


async def test_a_hung_engine_takes_connections_but_answers_nothing_until_cleared(engine):
    impatient = HttpClient(engine.base_url, Timeouts(connect_s=1, head_s=0.15, idle_s=0.15))
    engine.inject("hang")
    for path in ("/health", "/v1/models"):
        with pytest.raises(UpstreamError) as broken:
            await impatient.fetch("GET", path)
        assert broken.value.kind is FailureKind.TIMED_OUT
    engine.clear_faults()
    assert (await impatient.fetch("GET", "/health")).status == 200
    impatient.close()


async def test_streams_stall_when_an_engine_hangs_and_go_on_after(engine, client):
    engine.inject("hang", after_tokens=5)
    streaming = asyncio.create_task(stream(client, CHAT, body_of(engine)))
    await eventually(lambda: engine.tokens_written == 5)
    await asyncio.sleep(0.1)
    assert engine.tokens_written == 5
    assert not streaming.done()
    engine.clear_faults()
    assert len((await streaming).content) == 20


async def test_an_error_is_told_in_vllms_shape(engine, client):
    engine.inject("error", times=1)
    reply = await post(client, CHAT, chat_body(engine.model))
    assert reply.status == 500
    assert orjson.loads(reply.body)["error"]["type"] == "InternalServerError"
    assert (await post(client, CHAT, chat_body(engine.model))).status == 200


async def test_slow_steps_take_so_many_times_as_long(engine, client):
    engine.inject("slow", factor=20.0)
    account = (await stream(client, CHAT, body_of(engine, max_tokens=6))).chunks[-1]["metrics"]
    assert account["mean_itl_ms"] == pytest.approx(20, rel=0.1)


async def test_a_delay_is_not_in_the_engines_account(engine, client):
    engine.inject("slow", delay_s=0.2, times=1)
    started_s = time.monotonic()
    reply = await post_json(client, CHAT, chat_body(engine.model))
    assert time.monotonic() - started_s >= 0.2
    assert reply["metrics"]["queue_time_ms"] < 100


async def test_poison_kills_every_engine_that_touches_it():
    poison = Fault(FaultKind.POISON, marker="arsenic")
    async with running_engines(2, FakeEngineConfig(faults=(poison,))) as engines:
        for engine in engines:
            client = HttpClient(engine.base_url)
            assert (await post(client, CHAT, chat_body(engine.model, "milk"))).status == 200
            with pytest.raises(UpstreamError):
                await post(client, CHAT, chat_body(engine.model, "a little arsenic"))
            client.close()
        assert [engine.alive for engine in engines] == [False, False]


async def test_faults_are_told_over_http_too(engine, client):
    reply = await post(client, "/fake/fault", b'{"kind":"cut","after_tokens":3}')
    assert orjson.loads(reply.body)["faults"][0]["kind"] == "cut"
    assert (await tokens_until_it_breaks(client, body_of(engine)))[0] == 3
    assert orjson.loads((await client.fetch("DELETE", "/fake/fault")).body) == {"faults": []}
    assert await tokens_until_it_breaks(client, body_of(engine)) == (20, None)
    rejected = await post(client, "/fake/fault", b'{"kind":"melt"}')
    assert rejected.status == 400
    assert "accepted: die" in orjson.loads(rejected.body)["error"]["message"]


async def test_a_hung_engine_can_be_told_over_http_to_go_on(engine, client):
    engine.inject("hang")
    assert (await client.fetch("DELETE", "/fake/fault")).status == 200
    assert (await client.fetch("GET", "/health")).status == 200


async def test_a_client_that_leaves_while_the_engine_hangs_leaves_nothing_behind(engine):
    impatient = HttpClient(engine.base_url, Timeouts(connect_s=1, head_s=0.1, idle_s=0.1))
    engine.inject("hang")
    with pytest.raises(UpstreamError):
        await post(impatient, CHAT, chat_body(engine.model))
    impatient.close()
    engine.clear_faults()
    await asyncio.sleep(0.02)
    assert not engine.engine.has_work


async def test_an_aborted_request_ends_at_the_next_boundary():
    async with running_engines(1, FakeEngineConfig(cost=TEN_MS_STEPS)) as (engine,):
        client = HttpClient(engine.base_url)
        async with await client.send("POST", CHAT, body=body_of(engine, max_tokens=1000)) as reply:
            await reply.read()
        await asyncio.sleep(0.03)
        assert not engine.engine.has_work
        client.close()
