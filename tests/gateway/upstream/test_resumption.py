"""A stream whose worker breaks in mid-answer goes on on another worker, and its client sees no seam.

Fake engines draw each token from a hash of everything before it: one token lost, doubled or changed at the
seam would change all the text after it.
"""

from __future__ import annotations

import asyncio

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.fake_engine.fleet import running_engines
from phasewise.scheduling.breakers import FAILURES_TO_OPEN
from tests.gateway.harness import chat_body, events_of, eventually, listening, request_id_of, running_gateway

USAGE = {"include_usage": True}
# Quick to give up on a worker that hangs; a busy machine must not look like one.
QUICK_TO_GIVE_UP = Timeouts(connect_s=10.0, head_s=3.0, idle_s=3.0)


@pytest.fixture
async def pair():
    async with running_engines(2) as engines:
        yield engines


async def undisturbed(engine, path="/v1/chat/completions", **body):
    """What the engine answers when it is asked directly and nothing goes wrong."""
    client = HttpClient(engine.base_url)
    try:
        reply = await client.fetch("POST", path, body=orjson.dumps(body))
        assert reply.status == 200, reply.body
        return events_of(reply.body)
    finally:
        client.close()


def text_of(events):
    return "".join(it["choices"][0]["delta"].get("content", "") for it in choices_of(events))


def completion_text_of(events):
    return "".join(it["choices"][0]["text"] for it in choices_of(events))


def choices_of(events):
    return [it for it in events if isinstance(it, dict) and it.get("choices")]


# --- the seam --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_tokens", [1, 2, 7, 29])
async def test_a_chat_goes_on_with_the_same_text_and_ends_as_it_would_have(pair, after_tokens):
    body = chat_body(stream=True, max_tokens=30, ignore_eos=True, stream_options=USAGE)
    expected = await undisturbed(pair[1], **body)
    pair[0].inject("cut", after_tokens=after_tokens, times=1)
    async with running_gateway(pair) as gateway:
        reply = await gateway.fetch("POST", "/v1/chat/completions", body)
    events = events_of(reply.body)
    assert text_of(events) == text_of(expected)
    assert events[-1] == "[DONE]"
    assert [it["choices"][0]["finish_reason"] for it in choices_of(events)][-1] == "length"
    usage, expected_usage = events[-2]["usage"], expected[-2]["usage"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[count] == expected_usage[count]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


async def test_every_chunk_looks_as_if_one_engine_had_written_it(pair):
    pair[0].inject("cut", after_tokens=3, times=1)
    async with running_gateway(pair) as gateway:
        reply = await gateway.chat(stream=True, max_tokens=8, ignore_eos=True)
    *events, done = events_of(reply.body)
    assert done == "[DONE]"
    assert {it["id"] for it in events} == {f"chatcmpl-{request_id_of(reply)}"}
    assert {it["object"] for it in events} == {"chat.completion.chunk"}
    assert len({it["created"] for it in events}) == 1
    assert all(set(it["choices"][0]["delta"]) <= {"role", "content"} for it in events)
    assert not any("usage" in it for it in events)


async def test_an_answer_that_ends_by_itself_ends_in_the_same_place(pair):
    body = chat_body("end when you like", stream=True, max_tokens=4000)
    expected = await undisturbed(pair[1], **body)
    assert expected[-2]["choices"][0]["finish_reason"] == "stop"
    pair[0].inject("cut", after_tokens=5, times=1)
    async with running_gateway(pair) as gateway:
        events = events_of((await gateway.fetch("POST", "/v1/chat/completions", body)).body)
    assert text_of(events) == text_of(expected)
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


async def test_a_chat_without_a_limit_goes_on_beyond_what_completions_write_by_default(pair):
    body = chat_body("how long is this?", stream=True)
    del body["max_tokens"]
    expected = await undisturbed(pair[1], **body)
    assert len(choices_of(expected)) > 30
    pair[0].inject("cut", after_tokens=5, times=1)
    async with running_gateway(pair) as gateway:
        events = events_of((await gateway.fetch("POST", "/v1/chat/completions", body)).body)
    assert text_of(events) == text_of(expected)


@pytest.mark.parametrize("prompt", ["Once upon a time", ["Once upon a time"], [7, 8, 9], [[7, 8, 9]]])
async def test_a_completion_goes_on_too_however_its_prompt_was_given(pair, prompt):
    body = {"model": "fake-model", "prompt": prompt, "stream": True, "ignore_eos": True}
    expected = await undisturbed(pair[1], "/v1/completions", **body)
    pair[0].inject("cut", after_tokens=4, times=1)
    async with running_gateway(pair) as gateway:
        reply = await gateway.fetch("POST", "/v1/completions", body)
    events = events_of(reply.body)
    assert completion_text_of(events) == completion_text_of(expected)
    assert len(choices_of(events)) == 16
    assert {it["id"] for it in events[:-1]} == {f"cmpl-{request_id_of(reply)}"}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(after=st.integers(1, 39), text=st.text(min_size=1, max_size=40), tokens=st.integers(40, 60))
async def test_no_seam_anywhere_shows(after, text, tokens):
    async with running_engines(2) as engines:
        body = chat_body(text, stream=True, max_tokens=tokens, ignore_eos=True)
        expected = await undisturbed(engines[1], **body)
        engines[0].inject("cut", after_tokens=after, times=1)
        async with running_gateway(engines) as gateway:
            events = events_of((await gateway.fetch("POST", "/v1/chat/completions", body)).body)
    assert text_of(events) == text_of(expected)
    assert events[-1] == "[DONE]"


# --- what may break --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "die", "hang"])
async def test_it_goes_on_however_the_worker_broke(pair, fault):
    body = chat_body(stream=True, max_tokens=20, ignore_eos=True)
    expected = await undisturbed(pair[1], **body)
    pair[0].inject(fault, after_tokens=6)
    async with running_gateway(pair, timeouts=QUICK_TO_GIVE_UP) as gateway:
        reply = await gateway.fetch("POST", "/v1/chat/completions", body)
        timeline = await gateway.timeline(request_id_of(reply))
    assert text_of(events_of(reply.body)) == text_of(expected)
    assert timeline["outcome"] == "succeeded"


async def test_a_worker_that_returns_no_tokens_ends_the_stream_with_an_error(pair):
    pair[0].inject("cut", after_tokens=3, times=1)
    async with running_gateway(pair, timeouts=QUICK_TO_GIVE_UP) as gateway:
        pair[1].inject("hang")
        reply = await gateway.chat(stream=True)
    *_, error = events_of(reply.body)
    assert error["error"]["code"].startswith("stream_")
    assert b"[DONE]" not in reply.body


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def as_chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def as_event(**choice):
    chunk = {"id": "x", "created": 1, "model": "fake-model", "choices": [{"index": 0, **choice}]}
    return as_chunk(b"data: " + orjson.dumps(chunk) + b"\n\n")


async def breaks_off(head, body, writer):
    """A worker that breaks all of its answers off."""
    writer.write(EVENTS + as_event(delta={"content": "one t"}, finish_reason=None))
    await writer.drain()
    writer.close()


def answers_all_but(rejected):
    """A worker that is well, but rejects a part of what it takes to go on with another's answer.

    If it rejects nothing, it goes on from another word than the one that broke.
    """

    def plain(status, data):
        page = orjson.dumps(data)
        return b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(page)) + page

    async def answer(head, body, writer):
        path = head.split()[1].decode()
        if path == rejected:
            writer.write(plain(404, {}))
        elif path == "/tokenize":
            ids = [1] if "messages" in orjson.loads(body) else [2]
            writer.write(plain(200, {"tokens": ids, "max_model_len": 100}))
        elif path == "/detokenize":
            spelled = "".join({1: "Say it:", 2: "one"}[it] for it in orjson.loads(body)["tokens"])
            writer.write(plain(200, {"prompt": spelled}))
        else:
            part = {"text": " other"} if path == "/v1/completions" else {"delta": {"content": "whole"}}
            end = as_event(**part, finish_reason="stop") + as_chunk(b"data: [DONE]\n\n")
            writer.write(EVENTS + end + b"0\r\n\r\n")

    return answer


@pytest.mark.parametrize(
    ("rejected", "note"),
    [
        ("/tokenize", "/tokenize answered with HTTP 404"),
        ("/detokenize", "/detokenize answered with HTTP 404"),
        ("/v1/completions", "the worker did not resume (HTTP 404)"),
        (None, "the worker resumed with another word"),
    ],
)
async def test_a_worker_that_is_healthy_but_cannot_resume_keeps_its_requests_and_the_stream_gets_an_error(
    rejected, note
):
    async with (
        listening(breaks_off) as sick,
        listening(answers_all_but(rejected)) as well,
        running_gateway([sick, well.model_copy(update={"name": "well"})]) as gateway,
    ):
        replies = await asyncio.gather(
            *(gateway.chat(stream=True, stop="END", temperature=0) for _ in range(20))
        )
        reported = [reply for reply in replies if b"[DONE]" not in reply.body]
        timeline = await gateway.timeline(request_id_of(reported[0]))
        metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
    assert len(reported) >= FAILURES_TO_OPEN
    assert {events_of(it.body)[-1]["error"]["code"] for it in reported} == {"stream_not_resumable"}
    assert [it.get("note") for it in timeline["attempts"]][1:] == [note]
    assert 'phasewise_worker_breaker_open{worker="stub",pool="default"} 1' in metrics
    assert 'phasewise_worker_breaker_open{worker="well",pool="default"} 0' in metrics


async def test_a_worker_that_nobody_knew_was_gone_is_passed_over(pair):
    body = chat_body(stream=True, max_tokens=20, ignore_eos=True)
    expected = await undisturbed(pair[1], **body)
    async with (
        running_engines(1) as others,
        running_gateway([*pair, *others], poll_interval_s=60.0) as gateway,
    ):
        pair[1].die()
        pair[0].inject("cut", after_tokens=6, times=1)
        reply = await gateway.fetch("POST", "/v1/chat/completions", body)
        timeline = await gateway.timeline(request_id_of(reply))
    assert text_of(events_of(reply.body)) == text_of(expected)
    assert [it["outcome"] for it in timeline["attempts"]] == ["failed", "failed", "succeeded"]
    assert len(timeline["content"]) == 20


async def test_a_stream_whose_workers_are_all_gone_waits_for_one_to_come_back(pair):
    body = chat_body(stream=True, max_tokens=20, ignore_eos=True)
    expected = await undisturbed(pair[1], **body)
    async with running_gateway(pair) as gateway:
        pair[1].die()
        pair[0].inject("die", after_tokens=6, restart_after_s=0.5)
        reply = await gateway.fetch("POST", "/v1/chat/completions", body)
    assert text_of(events_of(reply.body)) == text_of(expected)


async def test_a_prompt_that_kills_workers_in_mid_answer_kills_two(pair):
    async with running_engines(2) as others, running_gateway([*pair, *others]) as gateway:
        for engine in (*pair, *others):
            engine.inject("poison", marker="poison", after_tokens=2)
        reply = await gateway.chat("this is poison", stream=True, max_tokens=20, ignore_eos=True)
        *_, error = events_of(reply.body)
        assert error["error"]["code"] == "stream_all_attempts_failed"
        await eventually(lambda: sum(not engine.alive for engine in (*pair, *others)) == 2)


# --- what is reported ------------------------------------------------------------------------------------


async def test_the_timeline_shows_both_attempts_and_one_stream(pair):
    pair[0].inject("cut", after_tokens=3, times=1)
    async with running_gateway(pair) as gateway:
        reply = await gateway.chat(stream=True, max_tokens=8, ignore_eos=True)
        timeline = await gateway.timeline(request_id_of(reply))
        metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
    first, second = timeline["attempts"]
    assert (first["kind"], first["outcome"]) == ("local", "failed")
    assert (second["kind"], second["outcome"]) == ("resumed", "succeeded")
    assert first["engine_id"] == f"chatcmpl-{timeline['id']}"
    assert second["engine_id"] == f"cmpl-{timeline['id']}-2"
    assert {span[0] for span in second["spans"]} == {"engine_queue", "prefill", "decode"}
    assert (timeline["outcome"], timeline["finish"], timeline["out"]) == ("succeeded", "length", 8)
    assert len(timeline["content"]) == 8
    assert {it["part"] for it in timeline["ttft"]["parts"]} == {"gateway_wait"}
    assert 'phasewise_resumes_total{model="fake-model",outcome="succeeded"} 1' in metrics


async def test_an_obstacle_is_named_in_the_timeline_and_the_stream_ends_with_an_error(pair):
    pair[0].inject("cut", after_tokens=3, times=1)
    async with running_gateway(pair) as gateway:
        reply = await gateway.chat(stream=True, presence_penalty=0.5)
        timeline = await gateway.timeline(request_id_of(reply))
    *events, error = events_of(reply.body)
    assert len([it for it in events if it["choices"][0]["delta"].get("content")]) == 3
    assert error["error"]["code"] == "stream_not_resumable"
    assert b"[DONE]" not in reply.body
    assert (timeline["outcome"], timeline["why"]) == ("failed", "not_resumable")
    (attempt,) = timeline["attempts"]
    assert "presence_penalty" in attempt["note"]
    assert pair[1].requests_finished == 0


async def test_a_gateway_with_resume_off_does_not_resume(pair):
    pair[0].inject("cut", after_tokens=3, times=1)
    async with running_gateway(pair, resume="off") as gateway:
        reply = await gateway.chat(stream=True)
    assert events_of(reply.body)[-1]["error"]["code"] == "stream_not_resumable"
