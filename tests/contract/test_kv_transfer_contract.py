"""What phasewise relies on in KV transfers between two engines: one suite, run on fake and on real pairs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson
import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.engine_metrics import MetricsSnapshot
from phasewise.engines.vllm import parse_metrics
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.simulator.kv import Connector
from tests.contract.engine_calls import (
    CHAT,
    COMPLETIONS,
    STREAM,
    chat_body,
    completion_body,
    finished_steps,
    fresh_id,
    fresh_prompt_ids,
    next_step,
    post,
    post_json,
    stream,
    until,
)
from tests.fake_engine_thread import running_fake_engines

KEEP = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
FAKE_LEASE_S = 90.0
BLOCK_TOKENS = 128
NOTICED_WITHIN_S = 60.0


@dataclass(frozen=True)
class Side:
    """One engine of a pair, as it is asked."""

    client: HttpClient
    steps: HttpClient

    async def counters(self) -> MetricsSnapshot:
        text = (await self.client.fetch("GET", "/metrics")).body.decode()
        return parse_metrics(text, time.time())


@dataclass(frozen=True)
class Pair:
    """Two engines that transfer KV from the first to the second."""

    prefill: Side
    decode: Side
    model: str

    async def ticket(self, path: str, body: bytes) -> dict:
        """Have a request's prompt computed; where its KV is kept."""
        asked = {**orjson.loads(body), "max_tokens": 1, "kv_transfer_params": KEEP}
        asked = {name: value for name, value in asked.items() if name not in STREAM}
        return (await post_json(self.prefill.client, path, orjson.dumps(asked)))["kv_transfer_params"]

    async def kept_is_given_up(self) -> bool:
        async def unused() -> bool:
            return (await self.prefill.counters()).gauge("kv_cache_usage_perc") == 0.0

        return await until(unused, within_s=NOTICED_WITHIN_S)


@pytest.fixture(scope="module")
def fake_pair():
    config = FakeEngineConfig(kv_transfer=Connector(lease_s=FAKE_LEASE_S), steps_port=0)
    with running_fake_engines(2, config) as engines:
        yield [(engine.base_url, engine.steps_url) for engine in engines], engines[0].model


@pytest.fixture
async def pair(request) -> AsyncIterator[Pair]:
    if request.param == "fake":
        urls, model = request.getfixturevalue("fake_pair")
    else:
        real = request.getfixturevalue("real_pair")
        urls, model = [(side.url, side.steps_url) for side in (real.prefill, real.decode)], real.model
    timeouts = Timeouts(connect_s=5, head_s=60, idle_s=60)
    sides = [Side(*(HttpClient(url, timeouts) for url in of_side)) for of_side in urls]
    yield Pair(*sides, model)
    for side in sides:
        side.client.close()
        side.steps.close()


on_both_kinds = pytest.mark.parametrize(
    "pair", ["fake", pytest.param("real", marks=pytest.mark.real)], indirect=True
)


def counting(first: int, last: int) -> str:
    """A text whose continuation no rounding can change; it begins with the time, so no engine has seen it."""
    return f"Run {time.time_ns()}: " + ", ".join(str(number) for number in range(first, last)) + ","


def with_ticket(body: bytes, ticket: dict) -> bytes:
    return orjson.dumps({**orjson.loads(body), "kv_transfer_params": ticket})


def by_source(counters: MetricsSnapshot, source: str) -> float:
    return counters.counter("prompt_tokens_by_source_total", source=source) or 0.0


@on_both_kinds
async def test_a_kept_prompt_is_pointed_to_in_these_terms(pair):
    body = completion_body(pair.model, fresh_prompt_ids(300))
    ticket = await pair.ticket(COMPLETIONS, body)
    assert list(ticket) == [
        *("do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id"),
        *("remote_request_id", "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size"),
        *("remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode", "remote_prefill_cached_tokens"),
    ]
    assert (ticket["do_remote_prefill"], ticket["do_remote_decode"]) == (True, False)
    assert [len(group) for group in ticket["remote_block_ids"]] == [3]
    assert (ticket["remote_num_tokens"], ticket["remote_prefill_cached_tokens"]) == (300, 0)
    assert ticket["transfer_mode"] == "pull"
    assert (await pair.prefill.counters()).gauge("kv_cache_usage_perc") > 0.0
    reply = await post_json(pair.decode.client, COMPLETIONS, with_ticket(body, ticket))
    assert reply["kv_transfer_params"] is None
    assert await pair.kept_is_given_up()


@on_both_kinds
async def test_what_was_transferred_is_not_computed_again_and_the_text_is_the_same(pair):
    body = completion_body(pair.model, counting(100, 220), max_tokens=8)
    before, since, request_id = await pair.decode.counters(), await next_step(pair.decode.steps), fresh_id()
    ticket = await pair.ticket(COMPLETIONS, body)
    tokens = ticket["remote_num_tokens"]
    handed = with_ticket(body, ticket)
    reply = await post_json(pair.decode.client, COMPLETIONS, handed, request_id)
    records = await finished_steps(pair.decode.steps, since, f"cmpl-{request_id}")
    after = await pair.decode.counters()

    assert by_source(after, "external_kv_transfer") - by_source(before, "external_kv_transfer") == tokens
    assert by_source(after, "local_compute") == by_source(before, "local_compute")
    moved = after.histogram("nixl_bytes_transferred").total
    moved -= getattr(before.histogram("nixl_bytes_transferred"), "total", 0.0)
    blocks = -(-tokens // BLOCK_TOKENS)
    # Two bytes per number, or four on a machine whose engines compute in float32.
    assert moved / (blocks * BLOCK_TOKENS) in {23_040, 46_080}
    assert sum(record["prompt_tokens"] or 0 for record in records) == 1
    (transfer,) = [it for record in records for it in record.get("transfers", [])]
    assert transfer["bytes"] == moved
    assert reply["metrics"]["queue_time_ms"] / 1e3 >= transfer["s"]
    assert await pair.kept_is_given_up()
    alone = await post_json(pair.prefill.client, COMPLETIONS, body)
    assert reply["choices"][0]["text"] == alone["choices"][0]["text"]


@on_both_kinds
async def test_a_streamed_chat_is_transferred_like_a_plain_one(pair):
    body = chat_body(pair.model, counting(100, 160), max_tokens=4, **STREAM)
    before = by_source(await pair.decode.counters(), "external_kv_transfer")
    ticket = await pair.ticket(CHAT, body)
    handed = with_ticket(body, ticket)
    seen = await stream(pair.decode.client, CHAT, handed)
    assert (len(seen.content), seen.chunks[-1]["usage"]["completion_tokens"]) == (4, 4)
    assert b"remote_" not in orjson.dumps(seen.chunks)
    after = by_source(await pair.decode.counters(), "external_kv_transfer")
    assert after - before == ticket["remote_num_tokens"]


@on_both_kinds
async def test_only_what_the_decode_side_has_not_cached_is_moved(pair):
    body = completion_body(pair.model, fresh_prompt_ids(300), max_tokens=1)
    await post(pair.decode.client, COMPLETIONS, body)
    before = await pair.decode.counters()
    ticket = await pair.ticket(COMPLETIONS, body)
    handed = with_ticket(body, ticket)
    reply = await post_json(pair.decode.client, COMPLETIONS, handed)
    after = await pair.decode.counters()
    gained = {
        source: by_source(after, source) - by_source(before, source)
        for source in ("external_kv_transfer", "local_cache_hit", "local_compute")
    }
    assert gained == {"external_kv_transfer": 300 - 256, "local_cache_hit": 256, "local_compute": 0}
    # It reports what the prefill side had cached: nothing.
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@on_both_kinds
async def test_kv_that_is_not_to_be_had_is_an_error_of_the_server(pair):
    """The head of a stream is long gone by then, so a stream says it in an event."""
    before = (await pair.decode.counters()).counter("nixl_num_failed_transfers_total") or 0.0
    body = chat_body(pair.model, counting(100, 160))
    ticket = {**await pair.ticket(CHAT, body), "remote_engine_id": "nobody"}
    asked = {**orjson.loads(body), "kv_transfer_params": ticket}
    plain = await post(pair.decode.client, CHAT, orjson.dumps(asked))
    seen = await stream(pair.decode.client, CHAT, orjson.dumps({**asked, **STREAM}))
    error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    assert (plain.status, orjson.loads(plain.body)) == (500, {"error": error})
    assert (seen.status, seen.chunks[-1], seen.last_event) == (200, {"error": error}, b"data: [DONE]")
    assert [chunk["choices"][0]["delta"] for chunk in seen.chunks[:-1]] == [
        {"role": "assistant", "content": ""}
    ]

    async def counted() -> bool:
        return ((await pair.decode.counters()).counter("nixl_num_failed_transfers_total") or 0.0) > before

    assert await until(counted, within_s=NOTICED_WITHIN_S)


@on_both_kinds
async def test_a_ticket_used_twice_is_answered_and_only_the_keeper_counts_it(pair):
    body = completion_body(pair.model, fresh_prompt_ids(200), max_tokens=1)
    other = completion_body(pair.model, fresh_prompt_ids(201)[1:], max_tokens=1)
    ticket = await pair.ticket(COMPLETIONS, body)
    before = (await pair.prefill.counters()).counter("nixl_num_notifications_after_expiry_total") or 0.0
    for asked in (body, other):
        reply = await post(pair.decode.client, COMPLETIONS, with_ticket(asked, ticket))
        assert reply.status == 200

    async def counted() -> bool:
        now = (await pair.prefill.counters()).counter("nixl_num_notifications_after_expiry_total") or 0.0
        return now - before == 1

    assert await until(counted, within_s=NOTICED_WITHIN_S)
