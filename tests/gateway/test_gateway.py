"""The whole gateway over sockets, before engines that fail on command."""

from __future__ import annotations

import asyncio
import logging
import time

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from phasewise.clients.http_client import Timeouts
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, SloClass
from phasewise.gateway.api import request_routes
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.server.client import BODY_LIMIT_BYTES
from phasewise.scheduling.world import Health
from tests.builders import make_timeline
from tests.gateway.harness import (
    ADMIN,
    chat_body,
    events_of,
    eventually,
    listening,
    request_id_of,
    running_gateway,
    worker_for,
)


@pytest.fixture
async def engine():
    async with running_engines(1) as engines:
        yield engines[0]


@pytest.fixture
async def pair():
    async with running_engines(2) as engines:
        yield engines


@pytest.fixture
async def gateway(engine):
    async with running_gateway([engine]) as gateway:
        yield gateway


def health_of(gateway, name="w0"):
    return next(it for it in gateway.app.gateway.cluster.snapshot() if it.worker.name == name).health


# --- answers ---------------------------------------------------------------------------------------------


async def test_a_plain_reply_is_the_engines_own(gateway, engine):
    reply = await gateway.chat(temperature=0)
    assert reply.status == 200
    body = orjson.loads(reply.body)
    assert body["id"] == f"chatcmpl-{request_id_of(reply)}"
    assert body["usage"]["completion_tokens"] == 8
    assert engine.requests_finished == 1


async def test_a_stream_reaches_the_client_without_the_usage_it_did_not_ask_for(gateway):
    reply = await gateway.chat(stream=True)
    events = events_of(reply.body)
    assert events[-1] == "[DONE]"
    assert all(event["choices"] for event in events[:-1])
    assert dict(reply.headers)[b"content-type"].startswith(b"text/event-stream")


async def test_a_client_that_asks_for_usage_gets_it(gateway):
    reply = await gateway.chat(stream=True, stream_options={"include_usage": True})
    assert events_of(reply.body)[-2]["usage"]["completion_tokens"] == 8


async def test_completions_are_served_too(gateway):
    reply = await gateway.fetch(
        "POST", "/v1/completions", {"model": "fake-model", "prompt": "once", "max_tokens": 4, "stream": True}
    )
    assert reply.status == 200
    timeline = await gateway.timeline(request_id_of(reply))
    assert timeline["attempts"][0]["engine_id"].startswith(f"cmpl-{request_id_of(reply)}")
    assert timeline["out"] == 4


async def test_requests_that_share_a_clients_id_are_distinguished(gateway):
    named = [(b"x-request-id", b"my-id_7")]
    replies = await asyncio.gather(*(gateway.chat(f"story {n}", headers=named) for n in range(3)))
    ids = [request_id_of(reply) for reply in replies]
    assert len({*ids, "my-id_7"}) == 4
    for reply, request_id in zip(replies, ids, strict=True):
        assert orjson.loads(reply.body)["id"] == f"chatcmpl-{request_id}"
        assert dict(reply.headers)[b"x-client-request-id"] == b"my-id_7"
        timeline = await gateway.timeline(request_id)
        assert (timeline["id"], timeline["client_id"]) == (request_id, "my-id_7")
        assert timeline["attempts"][0]["engine_id"] == f"chatcmpl-{request_id}"
    assert (await gateway.timeline("my-id_7"))["id"] in ids


@pytest.mark.parametrize("headers", [[], [(b"x-request-id", b"my id; drop")]])
async def test_without_a_sane_id_of_the_clients_none_is_sent_back_or_kept(gateway, headers):
    reply = await gateway.chat(headers=headers)
    assert len(request_id_of(reply)) == 32
    assert b"x-client-request-id" not in dict(reply.headers)
    assert "client_id" not in await gateway.timeline(request_id_of(reply))


async def test_a_rejected_request_has_both_ids_in_its_answer(gateway):
    reply = await gateway.chat(kv_transfer_params={}, headers=[(b"x-request-id", b"mine")])
    assert (reply.status, dict(reply.headers)[b"x-client-request-id"]) == (400, b"mine")
    assert len(request_id_of(reply)) == 32


async def test_fifty_streams_at_once_are_all_answered_in_full(pair):
    async with running_gateway(pair) as gateway:
        replies = await asyncio.gather(*(gateway.chat(f"story {n}", stream=True) for n in range(50)))
        assert all(events_of(reply.body)[-1] == "[DONE]" for reply in replies)
        assert len({request_id_of(reply) for reply in replies}) == 50
        assert [engine.requests_finished for engine in pair] == [25, 25]
        await eventually(lambda: gateway.under_way == 0)
        gateway.app.gateway.ledger.check_invariants()


# --- timelines -------------------------------------------------------------------------------------------


async def test_the_timeline_of_a_stream_splits_ttft_into_parts_that_add_up(gateway, engine):
    reply = await gateway.chat("word " * 300, stream=True)
    timeline = await gateway.timeline(request_id_of(reply))
    assert timeline["outcome"] == "succeeded"
    assert timeline["model"] == "fake-model"
    assert timeline["attempts"][0]["worker"] == ["w0", f"boot-{engine.boot}"]
    assert timeline["attempts"][0]["engine_id"] == f"chatcmpl-{request_id_of(reply)}"
    assert (timeline["out"], len(timeline["content"]), timeline["finish"]) == (8, 8, "length")
    assert timeline["in"] > 300
    ttft = timeline["ttft"]
    parts = {entry["part"]: entry for entry in ttft["parts"]}
    assert parts["gateway_wait"]["source"] == "gateway_clock"
    assert parts["prefill"]["source"] == "engine_report"
    assert sum(entry["ms"] for entry in ttft["parts"]) + ttft["unexplained_ms"] == pytest.approx(
        ttft["total_ms"]
    )
    assert abs(ttft["unexplained_ms"]) < 50


async def test_a_plain_reply_leaves_a_timeline_with_engine_spans_and_no_ttft(gateway):
    timeline = await gateway.timeline(request_id_of(await gateway.chat()))
    assert timeline["ttft"] is None
    assert {span[0] for span in timeline["attempts"][0]["spans"]} == {"engine_queue", "prefill", "decode"}
    assert timeline["out"] == 8


async def requests_page(gateway, query):
    """The ids on a page of timelines, and its headers."""
    reply = await gateway.fetch("GET", f"/phasewise/v1/requests?{query}", headers=ADMIN)
    assert reply.status == 200
    return [orjson.loads(line)["id"] for line in reply.body.splitlines()], dict(reply.headers)


async def test_recent_timelines_come_as_lines(gateway):
    ids = [request_id_of(await gateway.chat()) for _ in range(3)]
    assert (await requests_page(gateway, "limit=2"))[0] == ids[1:]
    late = await gateway.fetch("GET", "/phasewise/v1/requests?since_unix_s=99999999999", headers=ADMIN)
    assert late.body == b""
    for name, value in (("limit", "many"), ("after", "-1"), ("after", "x"), ("since_unix_s", "nan")):
        wrong = await gateway.fetch("GET", f"/phasewise/v1/requests?{name}={value}", headers=ADMIN)
        assert (wrong.status, orjson.loads(wrong.body)["error"]["param"]) == (400, name)


async def test_a_reader_pages_through_timelines_and_goes_on_where_it_stopped(gateway):
    ids = [request_id_of(await gateway.chat()) for _ in range(5)]
    first, headers = await requests_page(gateway, "limit=3&after=0")
    assert (first, headers[b"x-phasewise-more"]) == (ids[:3], b"1")
    second, headers = await requests_page(gateway, f"limit=3&after={headers[b'x-phasewise-next'].decode()}")
    assert (second, b"x-phasewise-more" in headers) == (ids[3:], False)
    later = request_id_of(await gateway.chat())
    third, _ = await requests_page(gateway, f"after={headers[b'x-phasewise-next'].decode()}")
    assert third == [later]


async def test_a_reader_can_begin_now_and_learns_the_gateways_clock(gateway):
    before = request_id_of(await gateway.chat())
    none, headers = await requests_page(gateway, "limit=0")
    assert none == []
    assert float(headers[b"x-phasewise-now"]) == pytest.approx(time.time(), abs=5.0)
    later = request_id_of(await gateway.chat())
    page, _ = await requests_page(gateway, f"after={headers[b'x-phasewise-next'].decode()}")
    assert page == [later]
    since = float(headers[b"x-phasewise-now"])
    assert (await requests_page(gateway, f"since_unix_s={since}"))[0] == [later]
    assert (await requests_page(gateway, "since_unix_s=0"))[0] == [before, later]


async def test_a_long_list_is_cut_to_a_page_and_sent_in_pieces(gateway, monkeypatch):
    store = gateway.app.gateway.timelines
    for number in range(2_100):
        store.record(make_timeline((0.1,) * 200, request_id=f"r{number}"))
    sizes = []
    pieces = request_routes._pieces
    monkeypatch.setattr(
        request_routes, "_pieces", lambda lines: [sizes.append(len(it)) or it for it in pieces(lines)]
    )
    page, headers = await requests_page(gateway, "limit=100000&after=0")
    assert page == [f"r{number}" for number in range(2_000)]
    assert headers[b"x-phasewise-more"] == b"1"
    assert len(sizes) > 10
    assert max(sizes) < 2 * request_routes.PIECE_BYTES


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails_before_content_is_replaced_unseen(pair, stream):
    pair[0].inject("error", times=1)
    async with running_gateway(pair) as gateway:
        reply = await gateway.chat(stream=stream)
        assert reply.status == 200
        timeline = await gateway.timeline(request_id_of(reply))
        assert [it["outcome"] for it in timeline["attempts"]] == ["failed", "succeeded"]
        assert [it["worker"][0] for it in timeline["attempts"]] == ["w0", "w1"]
        assert timeline["attempts"][1]["engine_id"].endswith("-2")
        parts = [span[0] for span in timeline["spans"]]
        assert parts == ["gateway_wait", "earlier_attempts"]
        metrics = await gateway.fetch("GET", "/metrics")
        assert b'phasewise_retries_total{model="fake-model"} 1' in metrics.body


async def test_a_stream_cut_before_its_first_token_is_retried(pair):
    pair[0].inject("cut", after_tokens=0, times=1)
    async with running_gateway(pair) as gateway:
        reply = await gateway.chat(stream=True)
        assert events_of(reply.body)[-1] == "[DONE]"
        assert pair[1].requests_finished == 1


async def test_a_plain_reply_that_breaks_off_is_retried_because_nothing_was_sent(pair):
    pair[0].inject("cut", after_tokens=3, times=1)
    async with running_gateway(pair) as gateway:
        assert (await gateway.chat()).status == 200


async def test_an_engine_that_dies_in_mid_stream_is_taken_out_and_its_successor_taken_in(pair):
    async with running_gateway(pair) as gateway:
        first_boot = pair[0].boot
        pair[0].inject("die", after_tokens=3)
        assert events_of((await gateway.chat(stream=True)).body)[-1] == "[DONE]"
        await eventually(lambda: health_of(gateway) is Health.DOWN)
        assert (await gateway.chat(stream=True)).status == 200
        await pair[0].start()
        await eventually(lambda: health_of(gateway) is Health.UP)
        assert pair[0].boot != first_boot
        ref = gateway.app.gateway.cluster.snapshot()[0].worker
        assert ref.incarnation == f"boot-{pair[0].boot}"


async def test_a_rejected_connection_goes_elsewhere_before_the_watcher_has_noticed(pair):
    async with running_gateway(pair, poll_interval_s=60.0) as gateway:
        pair[0].die()
        reply = await gateway.chat()
        assert reply.status == 200
        assert health_of(gateway) is Health.DOWN


async def test_an_engine_that_hangs_is_given_up_at_the_deadline(pair):
    pair_timeouts = Timeouts(connect_s=0.2, head_s=0.2, idle_s=0.2)
    async with running_gateway(pair, timeouts=pair_timeouts, poll_interval_s=60.0) as gateway:
        pair[0].inject("hang")
        reply = await gateway.chat(stream=True)
        assert reply.status == 200
        timeline = await gateway.timeline(request_id_of(reply))
        assert [it["outcome"] for it in timeline["attempts"]] == ["timed_out", "succeeded"]


async def test_two_failures_end_the_request_and_the_client_must_not_retry(pair):
    for engine in pair:
        engine.inject("error")
    async with running_gateway(pair) as gateway:
        reply = await gateway.chat(stream=True)
        assert (reply.status, orjson.loads(reply.body)["error"]["code"]) == (503, "all_attempts_failed")
        timeline = await gateway.timeline(request_id_of(reply))
        assert (timeline["outcome"], timeline["why"]) == ("failed", "all_attempts_failed")


async def test_without_a_worker_that_answers_clients_are_asked_to_come_back(engine):
    async with running_gateway([engine]) as gateway:
        engine.die()
        await eventually(lambda: health_of(gateway) is Health.DOWN)
        reply = await gateway.chat()
        assert (reply.status, dict(reply.headers)[b"retry-after"]) == (503, b"1")
        health = await gateway.fetch("GET", "/health")
        assert (health.status, orjson.loads(health.body)["reason"]) == (503, "none of 1 workers answers")
        timeline = await gateway.timeline(request_id_of(reply))
        assert (timeline["outcome"], timeline["why"]) == ("rejected", "no_healthy_worker")
        await engine.start()
        await eventually(lambda: health_of(gateway) is Health.UP)
        assert (await gateway.chat()).status == 200
        assert (await gateway.fetch("GET", "/health")).status == 200


async def test_a_request_the_engine_rejects_is_passed_on_as_it_answered(gateway):
    reply = await gateway.fetch("POST", "/v1/chat/completions", {"model": "fake-model", "max_tokens": 4})
    assert reply.status == 400
    timeline = await gateway.timeline(request_id_of(reply))
    assert (timeline["outcome"], timeline["why"]) == ("rejected", "engine_4xx")


async def test_an_unknown_model_is_not_found(gateway):
    reply = await gateway.chat(model="gpt-9")
    assert (reply.status, orjson.loads(reply.body)["error"]["code"]) == (404, "no_worker_for_model")


# --- leaving ---------------------------------------------------------------------------------------------


@pytest.fixture
async def slow_engine():
    async with running_engines(1) as engines:
        engines[0].inject("slow", factor=20.0)
        yield engines[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_engine_and_is_recorded(slow_engine, stream):
    async with running_gateway([slow_engine]) as gateway:
        headers = [(b"x-request-id", b"leaver")]
        sending = asyncio.create_task(
            gateway.chat(stream=stream, max_tokens=5000, ignore_eos=True, headers=headers)
        )
        await eventually(lambda: slow_engine.engine.running == 1)
        await eventually(lambda: slow_engine.tokens_written > 2)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await eventually(lambda: slow_engine.engine.running == 0, timeout_s=60.0)
        timeline = await gateway.timeline_of_client("leaver")
        assert (timeline["outcome"], timeline["why"]) == ("cancelled", "client_left")
        assert timeline["attempts"][0]["outcome"] == "cancelled"
        assert bool(timeline["content"]) is stream
        assert gateway.under_way == 0


async def test_a_client_that_leaves_before_the_first_token_is_not_retried(pair):
    for engine in pair:
        engine.inject("hang")
    async with running_gateway(
        [worker_for(engine, f"w{n}") for n, engine in enumerate(pair)], poll_interval_s=60.0
    ) as gateway:
        # Hung engines answer no health check either.
        for state in gateway.app.gateway.cluster.snapshot():
            gateway.app.gateway.cluster.mark_up(state.worker.name, "1")
        headers = [(b"x-request-id", b"leaver")]
        sending = asyncio.create_task(gateway.chat(stream=True, headers=headers))
        await eventually(lambda: gateway.under_way == 1)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        timeline = await gateway.timeline_of_client("leaver")
        assert timeline["outcome"] == "cancelled"
        assert len(timeline["attempts"]) == 1


async def test_a_client_that_does_not_read_holds_the_engine_back():
    """Buffers on the way fill up and then the engine's writes wait: nothing piles up in the gateway."""
    sent_bytes = 0
    chunk = orjson.dumps({"id": "x", "choices": [{"index": 0, "delta": {"content": "y" * 60_000}}]})
    event = b"data: " + chunk + b"\n\n"

    async def endless(head, body, writer):
        nonlocal sent_bytes
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while sent_bytes < 200_000_000:
            writer.write(event)
            await writer.drain()
            sent_bytes += len(event)

    async with listening(endless) as worker, running_gateway([worker]) as gateway:
        reading = await gateway.client.send(
            "POST", "/v1/chat/completions", body=orjson.dumps(chat_body(stream=True))
        )
        async with reading:
            before = -1
            while before != sent_bytes:
                before = sent_bytes
                await asyncio.sleep(0.3)
            assert 0 < sent_bytes < 30_000_000
        await eventually(lambda: gateway.under_way == 0)


# --- the door --------------------------------------------------------------------------------------------


async def test_a_field_that_is_not_the_clients_is_rejected_and_counted_and_reaches_no_engine(engine):
    keys = (ApiKey(sha256=key_sha256("k")),)
    async with running_gateway([engine], api_keys=keys) as gateway:
        reply = await gateway.chat(headers=[(b"authorization", b"Bearer k")], cache_salt="s3cret")
        metrics = await gateway.fetch("GET", "/metrics")
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["param"], error["type"]) == (400, "cache_salt", "invalid_request_error")
    assert b"s3cret" not in reply.body
    assert engine.requests_finished == 0
    assert b'outcome="rejected",reason="bad_request"' in metrics.body


async def test_a_body_that_is_too_large_is_rejected(gateway):
    reply = await gateway.fetch("POST", "/v1/chat/completions", b" " * (BODY_LIMIT_BYTES + 1))
    assert reply.status == 413
    assert (await gateway.chat()).status == 200


async def test_a_large_prompt_arrives_whole(engine):
    async with running_gateway([engine]) as gateway:
        reply = await gateway.chat("word " * 3000, max_tokens=1)
        assert orjson.loads(reply.body)["usage"]["prompt_tokens"] > 3000


async def test_keys_decide_who_may_ask_and_whose_timeline_it_is(engine):
    keys = (ApiKey(sha256=key_sha256("k1"), tenant="acme", slo_class="fast"),)
    classes = (SloClass(name="fast"),)
    async with running_gateway([engine], api_keys=keys, slo_classes=classes) as gateway:
        key = [(b"authorization", b"Bearer k1")]
        assert (await gateway.chat()).status == 401
        assert (await gateway.fetch("GET", "/v1/models")).status == 401
        assert (await gateway.fetch("GET", "/v1/models", headers=key)).status == 200
        reply = await gateway.chat(headers=key)
        timeline = await gateway.timeline(request_id_of(reply))
        assert (timeline["tenant"], timeline["slo_class"]) == ("acme", "fast")


async def test_admin_routes_need_the_admin_key(gateway):
    for path in ("/phasewise/v1/requests", "/phasewise/v1/requests/x", "/phasewise/v1/workers"):
        assert (await gateway.fetch("GET", path)).status == 401
    assert (await gateway.fetch("GET", "/phasewise/v1/requests/x", headers=ADMIN)).status == 404


async def test_without_an_admin_key_admin_routes_are_forbidden(engine):
    async with running_gateway([engine], admin_key_sha256=None) as gateway:
        reply = await gateway.fetch("GET", "/phasewise/v1/workers", headers=ADMIN)
        assert reply.status == 403
        assert b"admin_key_sha256" in reply.body


async def test_the_engine_sees_neither_the_clients_key_nor_its_controls():
    seen = []

    async def answer(head, body, writer):
        seen.append((head, body))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    body = b'{"model":"fake-model",  "messages":[]}'
    headers = [
        (b"authorization", b"Bearer s3cret"),
        (b"x-request-id", b"bad id!"),
        (b"x-data-parallel-rank", b"3"),
        (b"cookie", b"s3cret"),
    ]
    async with listening(answer) as worker, running_gateway([worker]) as gateway:
        reply = await gateway.fetch("POST", "/v1/chat/completions", body, headers)
    ((head, upstream_body),) = seen
    assert b"s3cret" not in head
    assert b"data-parallel" not in head.lower()
    assert b"x-request-id: " + request_id_of(reply).encode() in head
    assert upstream_body == body


# --- what is shown ---------------------------------------------------------------------------------------


async def test_models_have_openais_shape(gateway):
    reply = await gateway.fetch("GET", "/v1/models")
    listed = orjson.loads(reply.body)
    (model,) = listed["data"]
    assert listed["object"] == "list"
    assert (model["id"], model["object"], model["owned_by"]) == ("fake-model", "model", "vllm")
    assert model["created"] > 0


async def test_workers_show_who_they_are_and_what_they_do(gateway, engine):
    reply = await gateway.fetch("GET", "/phasewise/v1/workers", headers=ADMIN)
    (worker,) = orjson.loads(reply.body)["workers"]
    assert worker.pop("since_unix_s") <= time.time()
    assert worker == {
        "name": "w0",
        "circuit_open": False,
        "url": engine.base_url,
        "model": "fake-model",
        "role": "mixed",
        "pool": "default",
        "health": "up",
        "note": "",
        "incarnation": f"boot-{engine.boot}",
        "steps_url": engine.steps_url,
        "requests": 0,
        "tokens": 0,
    }


async def test_metrics_show_the_phases(gateway):
    await gateway.chat(stream=True)
    text = (await gateway.fetch("GET", "/metrics")).body.decode()
    samples = {
        sample.name: [] for family in text_string_to_metric_families(text) for sample in family.samples
    }
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))
    parts = {labels["part"]: value for labels, value in samples["phasewise_ttft_part_seconds_count"]}
    assert {"gateway_wait", "engine_queue", "prefill", "unexplained"} <= {
        it for it in parts if parts[it] == 1
    }
    assert [value for labels, value in samples["phasewise_worker_up"] if labels["worker"] == "w0"] == [1.0]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/v1/files", 404), ("GET", "/v1/chat/completions", 405)],
)
async def test_other_addresses_are_rejected_in_openais_shape(gateway, method, path, status):
    reply = await gateway.fetch(method, path)
    assert reply.status == status
    assert orjson.loads(reply.body)["error"]["message"]


async def test_prompts_and_keys_stand_in_no_log(engine, caplog):
    caplog.set_level(logging.DEBUG)
    keys = (ApiKey(sha256=key_sha256("k3y-s3cret")),)
    async with running_gateway([engine], api_keys=keys) as gateway:
        await gateway.chat("pr0mpt-s3cret", headers=[(b"authorization", b"Bearer k3y-s3cret")])
        await gateway.chat("pr0mpt-s3cret", headers=[(b"authorization", b"Bearer other-s3cret")])
        await gateway.chat(
            "pr0mpt-s3cret", made_up="s3cret", headers=[(b"authorization", b"Bearer k3y-s3cret")]
        )
        shown = await gateway.fetch("GET", "/phasewise/v1/requests", headers=ADMIN)
        metrics = await gateway.fetch("GET", "/metrics")
    assert "s3cret" not in caplog.text
    assert b"s3cret" not in shown.body + metrics.body


async def test_two_engines_that_share_a_name_for_their_model_are_one_model():
    async with (
        running_engines(1) as (first,),
        running_engines(1, FakeEngineConfig(model="other")) as (second,),
        running_gateway([first, second]) as gateway,
    ):
        listed = orjson.loads((await gateway.fetch("GET", "/v1/models")).body)
        assert [model["id"] for model in listed["data"]] == ["fake-model", "other"]
        assert (await gateway.chat(model="other")).status == 200
        assert second.requests_finished == 1


async def test_a_mistake_of_the_gateways_own_is_recorded_as_such_and_books_nothing(gateway, monkeypatch):
    async def mistaken(step, call):
        raise ZeroDivisionError

    monkeypatch.setattr(gateway.app.gateway.pipeline._driver, "_exchange", mistaken)
    reply = await gateway.chat(headers=[(b"x-request-id", b"unlucky")])
    assert reply.status == 500
    timeline = await gateway.timeline_of_client("unlucky")
    assert (timeline["outcome"], timeline["why"]) == ("failed", "gateway_error")
    assert gateway.under_way == 0


@pytest.mark.parametrize("model", ["fake-model", "org/team/fake-model"])
async def test_one_model_is_shown_by_its_name_and_another_one_is_not_found(engine, model):
    worker = worker_for(engine).model_copy(update={"model": model})
    async with running_gateway([worker]) as gateway:
        listed = orjson.loads((await gateway.fetch("GET", "/v1/models")).body)["data"]
        for path in (model, model.replace("/", "%2F")):
            reply = await gateway.fetch("GET", f"/v1/models/{path}")
            assert (reply.status, [orjson.loads(reply.body)]) == (200, listed)
        unknown = await gateway.fetch("GET", "/v1/models/nobodys")
        other_method = await gateway.fetch("DELETE", f"/v1/models/{model}")
    assert unknown.status == 404
    assert "no worker serves a model of the name nobodys" in orjson.loads(unknown.body)["error"]["message"]
    assert other_method.status == 405


async def test_a_model_is_shown_to_those_with_a_key(engine):
    keys = [{"sha256": key_sha256("k")}]
    async with running_gateway([engine], api_keys=keys) as gateway:
        statuses = [
            (await gateway.fetch("GET", "/v1/models/fake-model", headers=headers)).status
            for headers in ((), [(b"authorization", b"Bearer k")], [(b"x-api-key", b"k")])
        ]
    assert statuses == [401, 200, 200]
