"""Nothing of a body is read or parsed for those who may not send it, nor more than there is memory for."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import orjson
import pytest

from phasewise.core.errors import RequestRejected
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, CacheConfig, EdgeLimits
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.api.pipeline import PARSED_ASIDE_BYTES, Reservations
from phasewise.gateway.overload import OverloadWatch
from phasewise.gateway.upstream.call import Reservation
from tests.gateway.harness import chat_body, eventually, running_gateway
from tests.gateway.server.test_client_timeouts import chunked, connected, head_of
from tests.gateway.test_cache_replay import LONG_ENOUGH, SHORT

BEARER = [(b"authorization", b"Bearer one")]
KEY_LINE = b"authorization: Bearer one"
LARGE = b" " * 900 * 1024
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


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


async def test_bodies_take_no_more_memory_than_they_may_together():
    limits = EdgeLimits(bodies="1MiB")
    async with running_engines(1) as engines, running_gateway(engines, limits=limits) as gateway:
        async with connected(gateway) as (_, writer):
            writer.write(head_of(LARGE) + b"{")
            await eventually(lambda: reserved(gateway) == len(LARGE))
            async with connected(gateway) as (reader, second):
                second.write(head_of(LARGE))
                assert await reported(reader) == (503, "bodies_full")
            async with connected(gateway) as (reader, second):
                second.write(CHUNKED + chunked(b" " * 200 * 1024))
                assert await reported(reader) == (503, "bodies_full")
            # Small ones go on.
            assert (await gateway.chat()).status == 200
        await eventually(lambda: reserved(gateway) == 0)
        assert (await send(gateway, padded(800 * 1024))).status == 200
        await eventually(lambda: reserved(gateway) == 0)


@pytest.mark.parametrize("options", [{}, {"cache": CacheConfig(mode="serve")}], ids=["plain", "with_cache"])
@pytest.mark.parametrize("size", [10, PARSED_ASIDE_BYTES + 1])
async def test_a_large_body_is_parsed_in_another_process(size, options):
    async with running_engines(1) as engines, running_gateway(engines, **options) as gateway:
        pipeline, here = gateway.app.gateway.pipeline, []
        read = pipeline._reader.read
        pipeline._reader = SimpleNamespace(read=lambda *of: here.append(of) or read(*of))
        reply = await send(gateway, padded(size))
        rejected = await send(gateway, padded(size, made_up=1))
        assert (pipeline._large._process is None) == (size == 10)
    assert (reply.status, rejected.status) == (200, 400)
    assert len(here) == (2 if size == 10 else 0)


async def test_a_large_question_that_was_answered_before_is_answered_by_the_cache():
    cache = CacheConfig(mode="serve")
    question = padded(PARSED_ASIDE_BYTES + 1, **LONG_ENOUGH)
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


def test_tenants_that_take_much_leave_some_for_the_next():
    quotas = type("Quotas", (), {"settle": None})()
    shared = Reservations(quotas, OverloadWatch(None, int), 10, 120, tenants=3)

    def most(tenant):
        taken = Reservation()
        taken.tenant = tenant
        with contextlib.suppress(RequestRejected):
            for _ in range(1_000):
                shared._reserve(1, taken)
        return taken.body_bytes

    assert [most("a"), most("b"), most("c")] == [60, 30, 15]
    alone = Reservations(quotas, OverloadWatch(None, int), 10, 120, tenants=1)
    taken = Reservation()
    alone._reserve(120, taken)
    assert alone.reserved_bytes == 120
