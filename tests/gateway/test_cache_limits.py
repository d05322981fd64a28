"""Limits count whoever asks, whether or not the answer is there, and are given back whoever leaves."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, CacheConfig
from phasewise.gateway.api.auth import key_sha256
from phasewise.simulator.engine import EngineShape
from tests.gateway.harness import chat_body, eventually, request_id_of, running_gateway
from tests.gateway.server.test_client_timeouts import connected, head_of

SHORT = FakeEngineConfig(shape=EngineShape(mean_output_tokens=12))
KEY = [(b"authorization", b"Bearer one")]


@pytest.fixture
async def limited(request):
    """A gateway with a cache, whose one key has this limit."""
    key = ApiKey(sha256=key_sha256("one"), **request.param)
    cache = CacheConfig(mode="serve")
    async with (
        running_engines(1, SHORT) as engines,
        running_gateway(engines, cache=cache, api_keys=(key,)) as gateway,
    ):
        yield gateway


def ask(gateway):
    return gateway.chat(max_tokens=500, headers=KEY)


async def hit(gateway):
    reply = await ask(gateway)
    return reply if b"hit" in dict(reply.headers)[b"cache-status"] else None


@pytest.mark.parametrize("limited", [{"requests_per_minute": 3}], indirect=True)
async def test_a_key_over_its_requests_is_rejected_what_is_there(limited):
    replies = [await ask(limited) for _ in range(4)]
    timeline = await limited.timeline(request_id_of(replies[-1]))
    assert [it.status for it in replies] == [200, 200, 200, 429]
    # It was rejected before anything of it was read.
    assert b"cache-status" not in dict(replies[-1].headers)
    assert (timeline["outcome"], timeline["why"]) == ("rejected", "requests_over_limit")
    assert "cache" not in timeline


@pytest.mark.parametrize("counted_late", [False, True])
@pytest.mark.parametrize("limited", [{"tokens_per_minute": 100}], indirect=True)
async def test_for_a_key_over_its_tokens_nothing_is_looked_up(limited, counted_late):
    driver = limited.app.gateway.pipeline._driver
    take, began, ended = driver._quotas.take, [], []
    await ask(limited)

    async def look_up(lookup):
        began.append(lookup)
        await asyncio.Event().wait()
        ended.append(lookup)

    async def late(key_id, limits, tokens):
        if tokens > 1:
            await eventually(lambda: len(began) == 1)
        return await take(key_id, limits, tokens)

    driver.found._cache.look_up = look_up
    if counted_late:
        driver._quotas.take = late
    reply = await ask(limited)
    assert (reply.status, len(began), ended) == (429, int(counted_late), [])
    assert dict(reply.headers)[b"cache-status"] == b"phasewise; fwd=miss; detail=rejected"


@pytest.mark.parametrize("limited", [{"tokens_per_minute": 1_200}], indirect=True)
async def test_hits_use_none_of_a_keys_tokens(limited):
    await eventually(lambda: hit(limited))
    replies = [await ask(limited) for _ in range(20)]
    assert {it.status for it in replies} == {200}


@pytest.mark.parametrize("limited", [{"max_concurrent": 1}], indirect=True)
async def test_a_client_that_leaves_during_the_look_up_gives_its_slot_back(limited):
    cache, looking = limited.app.gateway.pipeline._driver.found._cache, asyncio.Event()
    look_up = cache.look_up

    async def never_found(lookup):
        looking.set()
        await asyncio.Event().wait()

    cache.look_up = never_found
    body = orjson.dumps(chat_body())
    async with connected(limited) as (_, writer):
        writer.write(head_of(body, b"authorization: Bearer one", b"x-request-id: left") + body)
        await looking.wait()
    left = await limited.timeline_of_client("left")
    cache.look_up = look_up
    reply = await ask(limited)
    assert (left["outcome"], left["why"], reply.status) == ("cancelled", "client_left", 200)


@pytest.mark.parametrize("limited", [{"tokens_per_minute": 10_000}], indirect=True)
async def test_tokens_are_counted_while_an_answer_is_looked_for(limited):
    driver = limited.app.gateway.pipeline._driver
    cache, quotas = driver.found._cache, driver._quotas
    look_up, take = cache.look_up, quotas.take
    begun = [asyncio.Event(), asyncio.Event()]

    async def both(number):
        begun[number].set()
        await asyncio.wait_for(begun[1 - number].wait(), 60)

    async def slow_look_up(lookup):
        await both(0)
        await look_up(lookup)

    async def slow_take(key_id, limits, tokens):
        if tokens > 1:
            await both(1)
        return await take(key_id, limits, tokens)

    cache.look_up, quotas.take = slow_look_up, slow_take
    reply = await ask(limited)
    timeline = await limited.timeline(request_id_of(reply))
    assert (reply.status, timeline["cache"]["result"]) == (200, "miss")
