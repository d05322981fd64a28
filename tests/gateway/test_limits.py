"""Keys' limits as clients meet them: before one gateway, and before several processes on one real Redis."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from tempfile import mkdtemp

import orjson
import pytest
import redis.asyncio

from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, RedisConfig
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.api.quotas import LEASE_S
from tests.gateway.gateway_process import running_process
from tests.gateway.harness import chat_body, eventually, listening, running_gateway

KEY = "a-key-with-limits"
ENDLESS = {"max_tokens": 4000, "ignore_eos": True}
BEARER = [(b"authorization", b"Bearer " + KEY.encode())]


def code_of(reply):
    return "served" if reply.status == 200 else orjson.loads(reply.body)["error"]["code"]


def key(**limits):
    return ApiKey(sha256=key_sha256(KEY), tenant="a", **limits)


# --- one gateway ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"requests_per_minute": 1}, "requests_over_limit"),
        ({"tokens_per_minute": 10}, "tokens_over_limit"),
    ],
)
async def test_a_key_over_its_limit_gets_the_limit_and_a_retry_time(limits, code):
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=(key(**limits),)) as gateway,
    ):
        assert code_of(await gateway.chat(headers=BEARER)) == "served"
        reply = await gateway.chat(headers=BEARER)
        assert (reply.status, code_of(reply)) == (429, code)
        assert 1 <= int(dict(reply.headers)[b"retry-after"]) <= 300
        assert KEY.encode() not in reply.body


async def test_a_slot_is_free_again_when_its_request_has_ended_or_its_client_has_left():
    async with (
        running_engines(1) as (engine,),
        running_gateway([engine], api_keys=(key(max_concurrent=1),)) as gateway,
    ):
        engine.inject("slow", factor=20.0)
        stream = asyncio.create_task(gateway.chat(headers=BEARER, stream=True, **ENDLESS))
        await eventually(lambda: gateway.under_way == 1)
        assert code_of(await gateway.chat(headers=BEARER)) == "concurrency_over_limit"
        stream.cancel()
        await asyncio.wait([stream])
        await eventually(lambda: not gateway.under_way)
        assert code_of(await gateway.chat(headers=BEARER, max_tokens=1)) == "served"
        assert code_of(await gateway.chat(headers=BEARER, max_tokens=1)) == "served"


async def test_tokens_are_corrected_by_what_the_engine_counted():
    # Each may write 6,000 and writes a few hundred: without the correction the second would not pass.
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=(key(tokens_per_minute=10_000),)) as gateway,
    ):
        for _ in range(3):
            reply = await gateway.chat(headers=BEARER, max_tokens=6000)
            assert code_of(reply) == "served"
            assert orjson.loads(reply.body)["usage"]["total_tokens"] < 1300


async def read_some(gateway, chunks, **fields):
    """A stream of which a client reads so many chunks before it leaves."""
    body = orjson.dumps(chat_body(stream=True, ignore_eos=True, **fields))
    async with await gateway.client.send("POST", "/v1/chat/completions", headers=BEARER, body=body) as reply:
        read = b""
        while read.count(b"data: ") <= chunks:
            read += await reply.read()
    await eventually(lambda: not gateway.under_way)


async def test_a_client_that_leaves_pays_for_what_it_has_read():
    # Charged 256 for naming no limit: what it reads beyond that would be free if the charge stayed.
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=(key(tokens_per_minute=900),)) as gateway,
    ):
        await read_some(gateway, 1000, max_tokens=None)
        assert code_of(await gateway.chat(headers=BEARER, max_tokens=1)) == "tokens_over_limit"


async def test_a_client_that_leaves_does_not_pay_for_what_it_might_have_read():
    async with (
        running_engines(1) as (engine,),
        running_gateway([engine], api_keys=(key(tokens_per_minute=6_000),)) as gateway,
    ):
        engine.inject("slow", factor=10.0)
        await read_some(gateway, 3, max_tokens=4_000)
        engine.clear_faults()
        reply = await gateway.chat(headers=BEARER, max_tokens=4_000)
        assert code_of(reply) == "served"


async def test_a_silly_limit_that_nobody_could_correct_costs_a_minute_and_not_days():
    async def never(_head, _body, _writer):
        await asyncio.Event().wait()

    async with (
        listening(never) as worker,
        running_gateway([worker], api_keys=(key(tokens_per_minute=6_000),)) as gateway,
    ):
        plain = asyncio.create_task(gateway.chat(headers=BEARER, max_tokens=2_000_000_000))
        await eventually(lambda: gateway.under_way == 1)
        plain.cancel()
        await asyncio.wait([plain])
        await eventually(lambda: not gateway.under_way)
        reply = await gateway.chat(headers=BEARER, max_tokens=1)
        assert code_of(reply) == "tokens_over_limit"
        assert int(dict(reply.headers)[b"retry-after"]) <= 60


@pytest.mark.parametrize(
    ("when_down", "status", "code"), [("reject", 503, "limits_unavailable"), ("count_alone", 200, "served")]
)
async def test_while_redis_is_away_the_rule_is_followed_and_metrics_show_it(
    own_redis, when_down, status, code
):
    own_redis.kill()
    unlimited = ApiKey(sha256=key_sha256("unlimited"))
    async with (
        running_engines(1) as engines,
        running_gateway(
            engines,
            api_keys=(key(max_concurrent=1), unlimited),
            redis=RedisConfig(url=own_redis.url, when_down=when_down),
        ) as gateway,
    ):
        reply = await gateway.chat(headers=BEARER)
        assert (reply.status, code_of(reply)) == (status, code)
        assert (b"retry-after" in dict(reply.headers)) is (status == 503)
        assert code_of(await gateway.chat(headers=[(b"authorization", b"Bearer unlimited")])) == "served"
        assert b"\nphasewise_quota_degraded 1" in (await gateway.fetch("GET", "/metrics")).body


# --- several gateways, one Redis --------------------------------------------------------------------------


def limited_process(folder, engine, redis_url, **limits):
    """A gateway in a process of its own that counts this key's limits in Redis."""
    return running_process(
        Path(mkdtemp(dir=folder)),
        engine,
        api_keys=[key(**limits).model_dump()],
        redis={"url": redis_url, "deadline_s": 10.0, "when_down": "reject"},
    )


async def chat(gateway, **fields):
    body = orjson.dumps(chat_body("say something", **fields))
    return await gateway.client.fetch("POST", "/v1/chat/completions", headers=BEARER, body=body)


async def test_two_processes_let_exactly_the_limit_pass_between_them(tmp_path, own_redis):
    async with (
        running_engines(1) as (engine,),
        limited_process(tmp_path, engine, own_redis.url, requests_per_minute=30) as first,
        limited_process(tmp_path, engine, own_redis.url, requests_per_minute=30) as second,
    ):
        began_s = time.monotonic()
        replies = await asyncio.gather(
            *(chat(gateway, max_tokens=1) for _ in range(60) for gateway in (first, second))
        )
        # One flows in every two seconds.
        flowed_in = int((time.monotonic() - began_s) / 2) + 1
    codes = [code_of(reply) for reply in replies]
    assert set(codes) == {"served", "requests_over_limit"}
    assert 30 <= codes.count("served") <= 30 + flowed_in


async def test_a_gateway_that_is_killed_gives_its_slots_back(tmp_path, own_redis):
    async with (
        running_engines(1) as (engine,),
        limited_process(tmp_path, engine, own_redis.url, max_concurrent=3) as first,
        limited_process(tmp_path, engine, own_redis.url, max_concurrent=3) as second,
    ):
        engine.inject("slow", factor=50.0)
        held = [asyncio.create_task(chat(first, stream=True, **ENDLESS)) for _ in range(3)]

        async def full():
            return code_of(await chat(second, max_tokens=1)) == "concurrency_over_limit"

        async with redis.asyncio.Redis.from_url(own_redis.url) as plain:
            leases = f"phasewise:{{{key_sha256(KEY)[:16]}}}:leases"

            async def all_held():
                return await plain.zcard(leases) == 3

            await eventually(all_held, timeout_s=60.0)
        assert await full()
        # Renewed as long as the gateway lives, however long its requests last.
        await asyncio.sleep(LEASE_S + 1.0)
        assert await full()
        first.process.kill()
        await first.ended()
        for task in held:
            task.cancel()
        await asyncio.wait(held)

        async def served():
            return code_of(await chat(second, max_tokens=1)) == "served"

        await eventually(served, timeout_s=LEASE_S + 30.0)
