"""KV handed over between fake engines in real time: what a gateway sees of it, and what is left behind."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import orjson
import pytest

from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.kv import Connector
from tests.contract.engine_calls import COMPLETIONS, STREAM, completion_body, post, post_json, stream, until

KEEP = {"do_remote_decode": True, "do_remote_prefill": False}
PROMPT = list(range(1000, 1700))
CONNECTOR = Connector(handshake_s=0.0, handshake_timeout_s=0.05, lease_s=600.0)
SOON_S = 60.0


class Pair:
    """Two engines and ways to ask them."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode = prefill, decode
        self.to_prefill, self.to_decode = HttpClient(prefill.base_url), HttpClient(decode.base_url)

    async def ticket(self, prompt=PROMPT):
        body = completion_body(self.prefill.model, prompt, max_tokens=1, kv_transfer_params=KEEP)
        return (await post_json(self.to_prefill, COMPLETIONS, body))["kv_transfer_params"]

    def handed(self, ticket, prompt=PROMPT, **fields):
        return completion_body(self.decode.model, prompt, kv_transfer_params=ticket, **fields)

    async def decoded(self, ticket, prompt=PROMPT):
        return await post(self.to_decode, COMPLETIONS, self.handed(ticket, prompt))

    async def kv_is_waited_for(self):
        return self.decode.engine.deferred == 1

    async def nothing_is_left(self):
        async def unused():
            engines = [engine.engine for engine in (self.prefill, self.decode) if engine.alive]
            for engine in engines:
                engine.check_invariants()
            return all(
                (engine.kv_usage, engine.kept_requests, engine.waiting) == (0.0, 0, 0) for engine in engines
            )

        return await until(unused, within_s=SOON_S)


@asynccontextmanager
async def running_pair(connector=CONNECTOR, **decode_fields):
    """A prefill and a decode engine, which differ in these fields."""
    config = FakeEngineConfig(kv_transfer=connector)
    async with (
        running_engines(1, config) as (p,),
        running_engines(1, replace(config, **decode_fields)) as (d,),
    ):
        pair = Pair(p, d)
        yield pair
        pair.to_prefill.close()
        pair.to_decode.close()


def text_of(reply):
    assert reply.status == 200
    return orjson.loads(reply.body)["choices"][0]["text"]


async def test_the_answer_is_that_of_one_engine_and_nothing_is_left():
    async with running_pair() as pair:
        ticket = await pair.ticket()
        assert pair.prefill.engine.kept_requests == 1
        text = text_of(await pair.decoded(ticket))
        assert text == text_of(await post(pair.to_prefill, COMPLETIONS, pair.handed(None)))
        assert await pair.nothing_is_left()


async def test_an_engine_without_a_connector_gives_no_ticket():
    async with running_pair(connector=None) as pair:
        assert await pair.ticket() is None
        assert b"nixl" not in (await pair.to_prefill.fetch("GET", "/metrics")).body


@pytest.mark.parametrize("known", [True, False])
async def test_a_prefill_engine_that_died_is_an_error_and_the_decode_engine_goes_on(known):
    async with running_pair() as pair:
        if known:
            await pair.decoded(await pair.ticket(PROMPT[1:]), PROMPT[1:])
        ticket = await pair.ticket()
        pair.prefill.die()
        assert (await pair.decoded(ticket)).status == 500
        assert (await post(pair.to_decode, COMPLETIONS, pair.handed(None))).status == 200
        assert await pair.nothing_is_left()


async def test_a_stream_that_gets_no_kv_ends_with_an_error_event():
    async with running_pair() as pair:
        pair.decode.inject("kv_reject")
        seen = await stream(pair.to_decode, COMPLETIONS, pair.handed(await pair.ticket(), **STREAM))
        assert (seen.status, seen.chunks[-1]["error"]["code"], seen.last_event) == (200, 500, b"data: [DONE]")


@pytest.mark.parametrize("who", ["decode", "prefill"])
async def test_kv_that_hangs_is_waited_for_until_the_client_gives_up_and_leaves_nothing(who):
    async with running_pair() as pair:
        ticket = await pair.ticket()
        if who == "decode":
            pair.decode.inject("kv_hang")
        else:
            pair.prefill.inject("hang")
        waiting = asyncio.ensure_future(pair.decoded(ticket))
        assert await until(pair.kv_is_waited_for, within_s=SOON_S)
        assert (await post(pair.to_decode, COMPLETIONS, pair.handed(None, PROMPT[:9]))).status == 200
        counters = await fetch_metrics(pair.to_decode)
        assert counters.gauge("num_requests_waiting") == 1
        assert counters.gauge("num_requests_waiting_by_reason", reason="deferred") == 1
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert await pair.nothing_is_left()


async def test_kv_that_nobody_fetches_is_given_up_even_if_the_engine_has_nothing_to_do():
    async with running_pair(replace(CONNECTOR, lease_s=0.2)) as pair:
        await pair.ticket()
        assert await pair.nothing_is_left()
        counters = await fetch_metrics(pair.to_prefill)
        assert counters.counter("nixl_num_kv_expired_reqs_total") == 1
        assert counters.gauge("kv_cache_usage_perc") == 0.0


async def test_requests_that_find_no_room_beside_kept_kv_get_it_as_soon_as_that_is_fetched():
    shape = EngineShape(max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=1024, total_blocks=8)
    config = FakeEngineConfig(kv_transfer=CONNECTOR, shape=shape)
    async with running_engines(2, config) as (p, d):
        pair = Pair(p, d)
        ticket = await pair.ticket()
        blocked = asyncio.ensure_future(post(pair.to_prefill, COMPLETIONS, pair.handed(None, PROMPT[1:])))
        await asyncio.sleep(0.1)
        assert not blocked.done()
        assert (await pair.decoded(ticket)).status == 200
        assert (await blocked).status == 200
        assert await pair.nothing_is_left()
        pair.to_prefill.close()
        pair.to_decode.close()


async def test_many_kv_transfers_at_once_leave_nothing():
    async with running_pair() as pair:

        async def one(number):
            prompt = [number, *PROMPT]
            return text_of(await pair.decoded(await pair.ticket(prompt), prompt))

        texts = await asyncio.gather(*(one(number) for number in range(40)))
        alone = [
            text_of(await post(pair.to_prefill, COMPLETIONS, pair.handed(None, [number, *PROMPT])))
            for number in range(40)
        ]
        assert texts == alone
        assert await pair.nothing_is_left()
