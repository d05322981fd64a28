"""A request's record is found by every id that people have of it."""

from __future__ import annotations

import orjson
import pytest

from phasewise.clients.step_feed import StepFeed
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import ADMIN, chat_body, events_of, eventually, request_id_of, running_gateway
from tests.gateway.pairs import LONG_TEXT, running_pair

COMPLETION = {"model": "fake-model", "prompt": "Once upon a time", "max_tokens": 4}
ASKED = {
    "chat": ("/v1/chat/completions", chat_body(), "chatcmpl-"),
    "streamed chat": ("/v1/chat/completions", chat_body(stream=True), "chatcmpl-"),
    "completion": ("/v1/completions", COMPLETION, "cmpl-"),
    "streamed completion": ("/v1/completions", {**COMPLETION, "stream": True}, "cmpl-"),
    "embedding": ("/v1/embeddings", {"model": "fake-model", "input": "a lighthouse"}, "embd-"),
}


def reply_id(reply):
    """The `id` in the body, streamed or not."""
    head = dict(reply.headers)[b"content-type"]
    return (events_of(reply.body)[0] if b"event-stream" in head else orjson.loads(reply.body))["id"]


async def ids_in_steps(engine):
    """The ids that a diagnosis has of the requests: those in the step record."""
    feed = StepFeed(engine.steps_url)
    try:
        return {it.request_id for step in (await feed.poll()).steps for it in step.finished}
    finally:
        feed.close()


async def missing(gateway, any_id):
    reply = await gateway.fetch("GET", f"/phasewise/v1/requests/{any_id}", headers=ADMIN)
    assert reply.status == 404
    return orjson.loads(reply.body)["error"]["message"]


@pytest.mark.parametrize("kind", ASKED)
async def test_the_id_in_a_reply_finds_its_record(kind):
    path, body, prefix = ASKED[kind]
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        reply = await gateway.fetch("POST", path, body)
        found = reply_id(reply)
        assert found.startswith(prefix)
        for any_id in (found, f"{found}-0", f"{found}-0-1f2e3d4c"):
            assert (await gateway.timeline(any_id))["id"] == request_id_of(reply)


async def test_the_ids_in_the_step_record_find_their_records():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        own = {request_id_of(await gateway.fetch("POST", path, body)) for path, body, _ in ASKED.values()}
        in_steps = await eventually(lambda: ids_in_steps(engine))
        found = {(await gateway.timeline(it))["id"] for it in in_steps}
    assert len(found) == len(in_steps) == 4
    assert found < own


async def test_an_answer_that_went_on_elsewhere_is_found_by_both_engines_ids():
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        engines[0].inject("cut", after_tokens=3, times=1)
        reply = await gateway.chat(stream=True, max_tokens=8, ignore_eos=True)
        timeline = await gateway.timeline(reply_id(reply))
        ids = {it["engine_id"] for it in timeline["attempts"]} | await ids_in_steps(engines[1])
        assert [it["kind"] for it in timeline["attempts"]] == ["local", "resumed"]
        assert len(ids) == 2
        for any_id in ids:
            assert (await gateway.timeline(any_id))["id"] == request_id_of(reply)


async def test_a_disaggregated_request_is_found_by_its_reply_and_by_either_side():
    async with running_pair() as pair:
        reply = await pair.gateway.chat(LONG_TEXT, stream=True)
        timeline = await pair.gateway.timeline(reply_id(reply))
        assert [it["kind"] for it in timeline["attempts"]] == ["prefill_side", "decode_side"]
        for attempt in timeline["attempts"]:
            assert (await pair.gateway.timeline(attempt["engine_id"]))["id"] == request_id_of(reply)


async def test_a_clients_own_id_finds_the_newest_request_that_had_it():
    named = [(b"x-request-id", b"order_7-retry")]
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        for text in ("first", "second"):
            reply = await gateway.chat(text, headers=named)
            await gateway.timeline(request_id_of(reply))
        assert (await gateway.timeline("order_7-retry"))["id"] == request_id_of(reply)


async def test_a_clients_id_that_looks_like_ours_hides_no_other_request():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        real = request_id_of(await gateway.chat("real"))
        for taken in (real, f"chatcmpl-{real}", f"{real}-2"):
            posed = await gateway.chat("posed", headers=[(b"x-request-id", taken.encode())])
            assert (await gateway.timeline(request_id_of(posed)))["client_id"] == taken
            assert (await gateway.timeline(taken))["id"] == real
        # One that only looks like ours is the client's.
        uuid = "0123456789abcdef" * 2
        named = await gateway.chat("named", headers=[(b"x-request-id", uuid.encode())])
        await gateway.timeline(request_id_of(named))
        assert (await gateway.timeline(uuid))["id"] == request_id_of(named)


async def test_what_is_not_kept_is_named_with_how_many_are():
    async with running_engines(1) as (engine,), running_gateway([engine], keep_timelines=2) as gateway:
        said = await missing(gateway, "chatcmpl-nobody")
        assert "the gateway has no record of request chatcmpl-nobody" in said
        assert "the last 2 requests" in said
        assert "gateway.keep_timelines" in said
        assert len(await missing(gateway, "x" * 3000)) < 400


REJECTED = {"a field of the gateway": orjson.dumps(chat_body(kv_transfer_params={})), "no JSON": b"{"}


@pytest.mark.parametrize("kind", REJECTED)
async def test_a_request_that_the_gateway_rejects_is_found_too(kind):
    own_id = ((b"x-request-id", b"bad-1"),)
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.fetch("POST", "/v1/chat/completions", REJECTED[kind], own_id)
        found = await gateway.timeline("bad-1")
        metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
    assert (found["id"], found["outcome"], found["why"]) == (request_id_of(reply), "rejected", "bad_request")
    assert 'phasewise_requests_total{model="none",outcome="rejected",reason="bad_request"} 1' in metrics
    assert 'result="missed"} 1' not in metrics


async def test_requests_without_a_known_key_are_counted_and_displace_no_record():
    keys = ({"sha256": key_sha256("k"), "tenant": "acme"},)
    with_key = ((b"authorization", b"Bearer k"),)
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=keys, keep_timelines=1) as gateway,
    ):
        kept = request_id_of(await gateway.chat(headers=with_key))
        assert (await gateway.timeline(kept))["outcome"] == "succeeded"
        rejected = [request_id_of(await gateway.chat()) for _ in range(3)]
        assert (await gateway.timeline(kept))["id"] == kept
        for request_id in rejected:
            await missing(gateway, request_id)
        metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
    assert 'outcome="rejected",reason="unauthenticated"} 3' in metrics
