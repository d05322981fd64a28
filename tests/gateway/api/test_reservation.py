"""Nothing of a body is read or parsed for those who may not send it, nor more than there is memory for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter

import orjson
import pytest

from phasewise.core.errors import RequestRejected
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, CacheConfig, EdgeLimits, SloClass
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.api.reservations import Reservations
from phasewise.gateway.overload import OverloadWatch
from phasewise.gateway.upstream.call import Reservation
from tests.gateway.harness import chat_body, eventually, running_gateway
from tests.gateway.server.test_client_timeouts import chunked, connected, head_of
from tests.gateway.test_cache_replay import LONG_ENOUGH, SHORT

BEARER = [(b"authorization", b"Bearer one")]
KEY_LINE = b"authorization: Bearer one"
LARGE = b" " * 900 * 1024
CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def key(**limits):
    return ApiKey(sha256=key_sha256("one"), **limits)


def padded(size, **fields):
    """A request with a short prompt in a long body."""
    return orjson.dumps(chat_body(**fields)) + b" " * size


async def send(gateway, body):
    return await gateway.fetch("POST", "/v1/chat/completions", body)


async def reported(reader):
    """Status and code of the answer to a request whose body has not come."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    body = await asyncio.wait_for(reader.readuntil(b"}}"), 60)
    return int(head.split()[1]), orjson.loads(body)["error"]["code"]


def reserved(gateway):
    return gateway.app.gateway.pipeline._reservations.reserved_bytes


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute"])
async def test_a_key_over_its_limit_is_rejected_before_its_body_is_sent(limit):
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=(key(**{limit: 1}),)) as gateway,
    ):
        assert (await gateway.chat(headers=BEARER)).status == 200
        async with connected(gateway) as (reader, writer):
            writer.write(head_of(LARGE, KEY_LINE))
            assert await reported(reader) == (429, f"{limit.split('_')[0]}_over_limit")
        assert reserved(gateway) == 0


async def test_an_unfinished_body_takes_its_keys_place_until_its_client_leaves():
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=(key(max_concurrent=1),)) as gateway,
    ):
        async with connected(gateway) as (_, writer):
            writer.write(head_of(LARGE, KEY_LINE) + b"{")
            await eventually(lambda: reserved(gateway) == len(LARGE))
            async with connected(gateway) as (reader, second):
                second.write(head_of(LARGE, KEY_LINE))
                assert await reported(reader) == (429, "concurrency_over_limit")
        await eventually(lambda: reserved(gateway) == 0)
        assert (await gateway.chat(headers=BEARER)).status == 200


async def test_a_body_that_is_rejected_gives_its_slot_back():
    limits = {"max_concurrent": 1, "tokens_per_minute": 1_000}
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=(key(**limits),)) as gateway,
    ):
        for _ in range(3):
            reply = await gateway.fetch("POST", "/v1/chat/completions", b"no JSON", BEARER)
            assert reply.status == 400
        assert (await gateway.chat(headers=BEARER)).status == 200


ONE_MIB = EdgeLimits(bodies="1MiB")
CLASSES = (SloClass(name="hurried", max_wait_s=0.2),)


async def test_a_body_waits_for_its_memory_until_its_deadline_and_small_ones_go_on():
    keys = (
        key(slo_class="hurried"),
        ApiKey(sha256=key_sha256("two"), slo_class="default"),
    )
    two = b"authorization: Bearer two"
    async with (
        running_engines(1) as engines,
        running_gateway(engines, limits=ONE_MIB, api_keys=keys, slo_classes=CLASSES) as gateway,
    ):
        async with connected(gateway) as (_, writer), connected(gateway) as (waits, second):
            writer.write(head_of(LARGE, two) + b"{")
            await eventually(lambda: reserved(gateway) == len(LARGE))
            body = padded(600 * 1024)
            second.write(head_of(body, two) + body)
            for unsized in (False, True):
                async with connected(gateway) as (reader, hurried):
                    chunks = CHUNKED[:-2] + KEY_LINE + b"\r\n\r\n" + chunked(b" " * 600 * 1024)
                    hurried.write(chunks if unsized else head_of(LARGE, KEY_LINE))
                    assert await reported(reader) == (503, "bodies_full")
            assert (await gateway.chat(headers=BEARER)).status == 200
            assert reserved(gateway) == len(LARGE)
            writer.transport.abort()
            assert (await waits.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        await eventually(lambda: reserved(gateway) == 0)


async def test_one_that_leaves_while_it_waits_lets_those_behind_it_pass():
    async with (
        running_engines(1) as engines,
        running_gateway(engines, limits=ONE_MIB) as gateway,
        connected(gateway) as (_, writer),
        connected(gateway) as (_, leaves),
        connected(gateway) as (reader, passes),
    ):
        writer.write(head_of(LARGE[: 500 * 1024]) + b"{")
        await eventually(lambda: reserved(gateway) == 500 * 1024)
        leaves.write(head_of(LARGE))
        await eventually(lambda: gateway.app.gateway.pipeline._reservations._waiting)
        body = padded(200 * 1024)
        passes.write(head_of(body) + body)
        leaves.transport.abort()
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_body_of_unknown_size_gives_back_what_it_does_not_take():
    body = padded(700 * 1024, stream=True, ignore_eos=True, max_tokens=4_000)
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        engine.inject("slow", factor=20.0)
        async with connected(gateway) as (reader, writer):
            writer.write(CHUNKED + chunked(body) + b"0\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"data: "), 60)
            assert reserved(gateway) == len(body)
        await eventually(lambda: reserved(gateway) == 0)


CODE = "    return {key: [value, (1, 2)] for key, value in rows.items()}\n"
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000_000}}]
AT_ONCE = {
    "code": (60, orjson.dumps(chat_body(CODE * 480))),
    "escaped": (60, json.dumps(chat_body("Привет, как дела ещё?" * 100)).encode()),
    "images": (40, orjson.dumps({**chat_body(), "messages": [{"role": "user", "content": IMAGE}]})),
}


@pytest.mark.parametrize("name", AT_ONCE)
async def test_what_applications_send_at_once_is_served_with_default_settings(name):
    count, body = AT_ONCE[name]
    # Default settings, except that a starved machine may take its time.
    patient = (SloClass(name="default", max_wait_s=60.0),)
    async with running_engines(2) as engines, running_gateway(engines, slo_classes=patient) as gateway:
        replies = await asyncio.gather(*(send(gateway, body) for _ in range(count)))
        process = gateway.app.gateway.pipeline._bodies.helper
        assert (process.pid is None) == (name != "images")
    assert Counter(reply.status for reply in replies) == {200: count}


async def test_a_large_question_that_was_answered_before_is_answered_by_the_cache():
    cache = CacheConfig(mode="serve")
    question = padded(3_500_000, **LONG_ENOUGH)
    async with running_engines(1, SHORT) as engines, running_gateway(engines, cache=cache) as gateway:
        assert (await send(gateway, question)).status == 200

        async def hits():
            reply = await send(gateway, question)
            return b"; hit" in dict(reply.headers)[b"cache-status"]

        # Answers are stored after they were sent.
        await eventually(hits)


async def test_a_request_that_ends_gives_back_what_it_reserved_however_it_ends():
    body = padded(100_000, stream=True, ignore_eos=True, max_tokens=4_000)
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        engine.inject("slow", factor=20.0)
        async with connected(gateway) as (reader, writer):
            writer.write(head_of(body) + body)
            await asyncio.wait_for(reader.readuntil(b"data: "), 60)
            assert reserved(gateway) == len(body)
        await eventually(lambda: reserved(gateway) == 0)


class NoQuotas:
    settle = None


def reservations(bodies_bytes=120, tenants=1):
    return Reservations(NoQuotas(), OverloadWatch(None, int), 10, bodies_bytes, tenants)


async def take(reservations, size, tenant="a", wait_s=0.0):
    taken = Reservation()
    taken.tenant = tenant
    await reservations._reserve(size, taken, time.monotonic() + wait_s)
    return taken


async def test_tenants_that_take_much_leave_some_for_the_next():
    shared = reservations(tenants=3)

    async def most(tenant):
        with contextlib.suppress(RequestRejected):
            while True:
                await take(shared, 1, tenant)
        return shared._by_tenant[tenant]

    assert [await most("a"), await most("b"), await most("c")] == [60, 30, 15]
    alone = reservations()
    await take(alone, 120)
    assert alone.reserved_bytes == 120


async def test_bodies_are_granted_in_order_and_no_tenant_waits_for_another_ones_turn():
    size, granted = 2**20, []
    shared = reservations(8 * size, tenants=2)
    first = await take(shared, 4 * size, "a")

    async def wait(name, tenant):
        await take(shared, 3 * size, tenant, 60.0)
        granted.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            tasks.create_task(wait(name, tenant))
        await eventually(lambda: granted == ["b1"])
        shared.release(first)
        await eventually(lambda: granted == ["b1", "a1"])
        shared.set_bounds(10, 16 * size, 2)
    assert granted == ["b1", "a1", "a2"]


async def test_a_body_that_never_fits_is_rejected_at_once():
    with pytest.raises(RequestRejected) as caught:
        await take(reservations(120), 121, wait_s=60.0)
    assert "gateway.limits.bodies" in caught.value.hint


async def test_a_body_that_took_longer_to_send_than_requests_may_wait_still_gets_its_turn():
    body, patience_s = padded(3_000_000, max_tokens=1), 0.5
    async with (
        running_engines(1) as engines,
        running_gateway(engines, slo_classes=(SloClass(max_wait_s=patience_s),)) as gateway,
        connected(gateway) as (reader, writer),
    ):
        turn = gateway.app.gateway.pipeline._bodies._turns["default"]
        await turn.acquire()
        writer.write(head_of(body) + body[:-1])
        await asyncio.sleep(1.2 * patience_s)
        writer.write(body[-1:])
        await eventually(lambda: turn._waiters)
        turn.release()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
