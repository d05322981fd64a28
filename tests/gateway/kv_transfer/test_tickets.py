"""Requests whose prompt is computed by one engine and answered by another, and what becomes of failures."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient
from phasewise.core.latency import ttft_breakdown
from phasewise.core.timeline import AttemptKind, Outcome, Part
from phasewise.core.timeline_record import from_record
from tests.gateway.harness import chat_body, events_of, eventually, request_id_of
from tests.gateway.pairs import LEASE_S, LONG_TEXT, running_pair

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: chat_body(LONG_TEXT, temperature=0),
    COMPLETIONS: {"model": "fake-model", "prompt": LONG_TEXT, "max_tokens": 8, "temperature": 0},
}
PREFILLED = (AttemptKind.PREFILL_SIDE, "succeeded")
TRANSFERRED = [PREFILLED, (AttemptKind.DECODE_SIDE, "succeeded")]
LOCAL = (AttemptKind.LOCAL, "succeeded")
SLOW_PREFILL = {"factor": 1_000.0}


async def ask(pair, path=CHAT, **fields):
    return await pair.gateway.fetch("POST", path, {**BODIES[path], **fields})


async def whole_text(engine, path=CHAT, **fields):
    """The text that an engine gives that is asked itself."""
    client = HttpClient(engine.base_url)
    try:
        body = orjson.dumps({**BODIES[path], **fields})
        return text_of(await client.fetch("POST", path, body=body))
    finally:
        client.close()


async def metrics_of(engine):
    client = HttpClient(engine.base_url)
    try:
        return await fetch_metrics(client)
    finally:
        client.close()


def text_of(reply):
    """The answer's text, streamed or not."""
    if reply.body.startswith(b"data:"):
        chunks = [it for it in events_of(reply.body) if isinstance(it, dict) and it.get("choices")]
        return "".join(_text(it["choices"][0]) for it in chunks)
    return _text(orjson.loads(reply.body)["choices"][0])


def _text(choice):
    if "text" in choice:
        return choice["text"]
    return (choice.get("delta") or choice.get("message") or {}).get("content") or ""


async def timeline_of(pair, reply):
    return from_record(await pair.gateway.timeline(request_id_of(reply)))


async def counted(pair, outcome):
    text = (await pair.gateway.fetch("GET", "/metrics")).body.decode()
    series = f'phasewise_kv_transfers_total{{outcome="{outcome}"}} '
    return sum(float(line.removeprefix(series)) for line in text.splitlines() if line.startswith(series))


async def nothing_is_left(pair):
    """Every booking is given back at once, every block as soon as nobody can come for it any more."""
    await eventually(lambda: pair.gateway.under_way == 0)
    for engine in pair.engines:
        await eventually(lambda it=engine: not it.alive or it.engine.kv_usage == 0, timeout_s=20.0)
        if engine.alive:
            engine.engine.check_invariants()


def kinds(timeline):
    return [(it.kind, it.outcome.value) for it in timeline.attempts]


# --- as it should be --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_one_engine_computes_the_prompt_and_another_writes_the_same_text(path, stream):
    async with running_pair() as pair:
        reply = await ask(pair, path, stream=stream)
        timeline = await timeline_of(pair, reply)
        seen = await metrics_of(pair.decode[0])
        assert (reply.status, text_of(reply)) == (200, await whole_text(pair.prefill[0], path))
        assert kinds(timeline) == TRANSFERRED
        assert [it.worker.name for it in timeline.attempts] == ["p0", "d0"]
        assert b"remote_" not in reply.body
        came = seen.counter("prompt_tokens_by_source_total", source="external_kv_transfer")
        computed = seen.counter("prompt_tokens_by_source_total", source="local_compute")
        assert came == timeline.prompt_tokens > 100
        assert not computed
        assert await counted(pair, "done") == 1
        await nothing_is_left(pair)


async def test_the_parts_of_both_sides_add_up_to_the_time_to_first_token():
    async with running_pair() as pair:
        timeline = await timeline_of(pair, await ask(pair, stream=True))
    found = ttft_breakdown(timeline)
    prefill, decode = timeline.attempts
    assert timeline.serving_attempt is decode
    assert timeline.prefill_attempt is prefill
    assert {Part.ENGINE_QUEUE, Part.PREFILL} == {it.part for it in prefill.spans}
    assert {Part.KV_TRANSFER, Part.PREFILL, Part.DECODE} == {it.part for it in decode.spans}
    known = sum(it.duration_s for it in prefill.spans + decode.spans if it.part is not Part.DECODE)
    waited = found.seconds(Part.GATEWAY_WAIT)
    assert found.ttft_s == pytest.approx(known + waited + found.unexplained_s)
    assert found.unexplained_s > -0.002
    assert found.seconds(Part.KV_TRANSFER) > 0
    assert found.seconds(Part.EARLIER_ATTEMPTS) is None
    assert timeline.tries == 1


async def test_what_was_cached_is_what_the_prefill_engine_had():
    async with running_pair() as pair:
        first = await timeline_of(pair, await ask(pair, stream=True))
        again = await timeline_of(pair, await ask(pair, stream=True))
    assert first.cached_tokens == 0
    assert again.cached_tokens > 100


async def test_a_plain_reply_reports_its_kv_transfer_in_its_head_and_a_stream_in_its_comment():
    async with running_pair() as pair:
        plain = await ask(pair)
        timing = dict(plain.headers)[b"server-timing"].decode()
        streamed = await pair.gateway.chat(LONG_TEXT, stream=True, headers=[(b"x-phasewise-timing", b"1")])
    for part in ("gateway_wait", "engine_queue", "prefill", "kv_transfer", "decode", "unexplained"):
        assert f"{part};dur=" in timing
    assert b" kv_transfer_ms=" in streamed.body


async def test_requests_that_cannot_be_split_are_served_whole_by_the_decode_worker():
    async with running_pair() as pair:
        timeline = await timeline_of(pair, await ask(pair, truncate_prompt_tokens=-1))
    assert kinds(timeline) == [LOCAL]
    assert timeline.attempts[0].worker.name == "d0"


async def test_a_client_cannot_bring_a_ticket_of_its_own():
    async with running_pair() as pair:
        reply = await ask(pair, kv_transfer_params={"do_remote_prefill": True, "remote_host": "10.0.0.1"})
        assert reply.status == 400
        assert b"kv_transfer_params" in reply.body


async def test_what_the_prefill_engine_rejects_is_sent_to_the_client_once():
    async with running_pair() as pair:
        reply = await ask(pair, messages=[{"role": "user", "content": "word " * 200_000}])
        timeline = await timeline_of(pair, reply)
    assert reply.status == 400
    assert kinds(timeline) == [(AttemptKind.PREFILL_SIDE, "rejected")]
    assert timeline.outcome is Outcome.REJECTED


# --- as it should not -------------------------------------------------------------------------------------


async def test_a_prefill_engine_that_dies_costs_its_request_only_time():
    async with running_pair() as pair:
        pair.prefill[0].inject("slow", **SLOW_PREFILL)
        asking = asyncio.create_task(ask(pair, stream=True))
        await eventually(lambda: pair.prefill[0].engine.kv_usage > 0)
        pair.prefill[0].die()
        reply = await asking
        timeline = await timeline_of(pair, reply)
        assert (reply.status, text_of(reply)) == (200, await whole_text(pair.decode[0]))
        assert kinds(timeline) == [(AttemptKind.PREFILL_SIDE, "failed"), LOCAL]
        assert timeline.tries == 2
        await nothing_is_left(pair)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
async def test_rejected_kv_is_computed_where_it_was_rejected(stream):
    async with running_pair() as pair:
        pair.decode[0].inject("kv_reject", times=1)
        reply = await ask(pair, stream=stream)
        timeline = await timeline_of(pair, reply)
        assert (reply.status, text_of(reply)) == (200, await whole_text(pair.prefill[0]))
        assert kinds(timeline) == [PREFILLED, (AttemptKind.DECODE_SIDE, "failed"), LOCAL]
        assert [it.worker.name for it in timeline.attempts] == ["p0", "d0", "d0"]
        assert timeline.serving_attempt.kind is AttemptKind.LOCAL
        assert await counted(pair, "rejected") == 1
        found = ttft_breakdown(timeline)
        if stream:
            assert found.seconds(Part.EARLIER_ATTEMPTS) > 0
            assert found.seconds(Part.KV_TRANSFER) is None
        await nothing_is_left(pair)


async def test_a_stream_whose_kv_does_not_come_in_time_goes_on_without_it():
    async with running_pair() as pair:
        pair.decode[0].inject("kv_hang")
        reply = await ask(pair, stream=True)
        timeline = await timeline_of(pair, reply)
        assert (reply.status, text_of(reply)) == (200, await whole_text(pair.decode[0]))
        assert kinds(timeline) == [PREFILLED, (AttemptKind.DECODE_SIDE, "failed"), LOCAL]
        assert "0.5 s" in timeline.attempts[1].note
        assert await counted(pair, "timed_out") == 1
        await nothing_is_left(pair)


async def test_a_plain_reply_whose_source_has_gone_is_given_up_in_time():
    """Nobody sees a plain reply's first token, so time alone does not show that none has come."""
    async with running_pair(kv_transfer={"timeout_s": 1.5}) as pair:
        pair.decode[0].inject("kv_hang")
        asking = asyncio.create_task(ask(pair))
        await eventually(lambda: pair.decode[0].engine.deferred > 0)
        pair.prefill[0].die()
        reply = await asking
        timeline = await timeline_of(pair, reply)
        assert (reply.status, text_of(reply)) == (200, await whole_text(pair.decode[0]))
        assert kinds(timeline) == [PREFILLED, (AttemptKind.DECODE_SIDE, "failed"), LOCAL]
        await nothing_is_left(pair)


async def test_a_decode_engine_that_dies_before_the_first_token_has_its_request_done_elsewhere():
    async with running_pair(decode=2) as pair:
        for engine in pair.decode:
            engine.inject("kv_hang")
        asking = asyncio.create_task(ask(pair, stream=True))
        waiting = await eventually(lambda: next((it for it in pair.decode if it.engine.deferred), None))
        (other,) = (it for it in pair.decode if it is not waiting)
        other.clear_faults()
        waiting.die()
        reply = await asking
        timeline = await timeline_of(pair, reply)
        assert (reply.status, text_of(reply)) == (200, await whole_text(other))
        assert kinds(timeline)[:2] == [PREFILLED, (AttemptKind.DECODE_SIDE, "failed")]
        assert timeline.outcome is Outcome.SUCCEEDED
        await nothing_is_left(pair)


async def test_a_decode_engine_that_dies_in_mid_answer_has_it_finished_elsewhere():
    async with running_pair(decode=2) as pair:
        for engine in pair.decode:
            engine.inject("cut", after_tokens=4, times=1)
        reply = await ask(pair, stream=True)
        timeline = await timeline_of(pair, reply)
        assert (reply.status, text_of(reply)) == (200, await whole_text(pair.prefill[0]))
        assert kinds(timeline)[:2] == [PREFILLED, (AttemptKind.DECODE_SIDE, "failed")]
        assert {it.kind for it in timeline.attempts[2:]} == {AttemptKind.RESUMED}
        assert timeline.serving_attempt is timeline.attempts[1]
        await nothing_is_left(pair)


async def test_a_ticket_of_an_engine_that_was_restarted_is_rejected_and_the_request_served():
    async with running_pair(kv_transfer={"timeout_s": 10.0, "lease_s": 20}) as pair:
        pair.decode[0].inject("slow", delay_s=1.0, times=1)
        asking = asyncio.create_task(ask(pair, stream=True))
        # The decode engine has the request, so the gateway has the prefill engine's whole answer.
        await eventually(lambda: not pair.decode[0].faults.faults)
        await pair.prefill[0].restart()
        reply = await asking
        timeline = await timeline_of(pair, reply)
        assert (reply.status, text_of(reply)) == (200, await whole_text(pair.decode[0]))
        assert kinds(timeline) == [PREFILLED, (AttemptKind.DECODE_SIDE, "failed"), LOCAL]
        await nothing_is_left(pair)


async def test_a_prefill_engine_without_a_connector_is_distinguished_from_an_unhealthy_one():
    async with running_pair(prefill_connector=None) as pair:
        reply = await ask(pair, stream=True)
        timeline = await timeline_of(pair, reply)
        assert kinds(timeline) == [(AttemptKind.PREFILL_SIDE, "failed"), LOCAL]
        assert "kept no KV" in timeline.attempts[0].note
        assert await counted(pair, "no_kv") == 1


@pytest.mark.parametrize("during", ["prefill", "transfer"])
async def test_a_client_that_leaves_leaves_nothing_behind(during):
    async with running_pair() as pair:
        if during == "prefill":
            pair.prefill[0].inject("slow", **SLOW_PREFILL)
        else:
            pair.decode[0].inject("kv_hang")
        leaving = HttpClient(pair.gateway.url)
        asking = asyncio.create_task(
            leaving.fetch("POST", CHAT, body=orjson.dumps({**BODIES[CHAT], "stream": True}))
        )
        engine = pair.prefill[0] if during == "prefill" else pair.decode[0]
        await eventually(lambda: engine.engine.kv_usage > 0)
        asking.cancel()
        leaving.close()
        await asyncio.gather(asking, return_exceptions=True)
        await nothing_is_left(pair)


async def test_kv_is_not_asked_for_once_connecting_took_until_its_time_was_over(monkeypatch):
    """The decode engine would read whatever lies in those blocks by then, and say nothing."""
    async with running_pair() as pair:
        exchange = pair.gateway.app.gateway.pipeline._driver._exchange
        to_decode = exchange._workers["d0"]
        connect = to_decode._connect

        async def connect_late():
            await asyncio.sleep(LEASE_S * 0.6)
            return await connect()

        monkeypatch.setattr(to_decode, "_connect", connect_late)
        # A stream would be given up before: by the time limit of its first token.
        reply = await ask(pair)
        timeline = await timeline_of(pair, reply)
        assert kinds(timeline)[:2] == [PREFILLED, (AttemptKind.DECODE_SIDE, "failed")]
        assert timeline.outcome is Outcome.SUCCEEDED
        assert timeline.attempts[1].note == "the time to request this KV has passed"
        assert await counted(pair, "too_late") == 1
        seen = await metrics_of(pair.decode[0])
        assert not seen.counter("prompt_tokens_by_source_total", source="external_kv_transfer")
