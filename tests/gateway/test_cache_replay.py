"""A stored answer looks like an engine's, in both forms, comes at once, and is timed as what it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from phasewise.core.latency import ttft_breakdown
from phasewise.core.request import Endpoint
from phasewise.core.timeline import Part
from phasewise.core.timeline_record import from_record
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import CacheConfig
from phasewise.gateway.answer_cache.response_writer import LONGEST_CHUNK, Frames
from phasewise.simulator.engine import EngineShape
from tests.gateway.harness import chat_body, events_of, eventually, request_id_of, running_gateway
from tests.gateway.upstream.test_resumption import completion_text_of, text_of

USAGE = {"include_usage": True}
SHORT = FakeEngineConfig(shape=EngineShape(mean_output_tokens=12))
LONG_ENOUGH = {"max_tokens": 500}
ENGINES_OWN = {"system_fingerprint", "metrics"}
"""What an engine says of the answer's making, in its usage chunk; nothing was made."""


@pytest.fixture
async def engine():
    async with running_engines(1, SHORT) as engines:
        yield engines[0]


async def stored(gateway, engine, text="say something", path="/v1/chat/completions", **fields):
    """The engine's own reply to a stream, once its answer is kept."""
    prompt = chat_body(text) if "chat" in path else {"model": "fake-model", "prompt": text}
    body = {**prompt, **LONG_ENOUGH, "stream": True, **fields}
    first = await gateway.fetch("POST", path, body)
    assert dict(first.headers)[b"cache-status"] == b"phasewise; fwd=miss"

    async def kept():
        reply = await gateway.fetch("POST", path, body)
        return reply if b"hit" in dict(reply.headers)[b"cache-status"] else None

    return body, first, await eventually(kept)


# --- its form ---------------------------------------------------------------------------------------------


@given(text=st.text(min_size=1), endpoint=st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS]))
def test_chunks_hold_the_text_whatever_stands_in_it(text, endpoint):
    frames = Frames(endpoint, "r1", 'a "model"', 7)
    chunks = events_of(frames.content(text))
    spoken = text_of if endpoint is Endpoint.CHAT else completion_text_of
    assert spoken(chunks) == text
    assert {it["model"] for it in chunks} == {'a "model"'}
    assert frames.content(orjson.Fragment(orjson.dumps(text))) == frames.content(text)


async def test_a_long_stored_text_comes_in_several_chunks(engine):
    async with running_gateway([engine], cache=CacheConfig(mode="serve")) as gateway:
        body, _, _ = await stored(gateway, engine)
        cache, text = gateway.app.gateway.pipeline._driver.found._cache, "wörd " * LONGEST_CHUNK
        look_up = cache.look_up

        async def find_a_long_one(lookup):
            await look_up(lookup)
            lookup.found = replace(lookup.found, text=text)

        cache.look_up = find_a_long_one
        reply = await gateway.fetch("POST", "/v1/chat/completions", body)
    events = events_of(reply.body)
    assert text_of(events) == text
    assert [len(text_of([it])) for it in events[1:-2]] == [LONGEST_CHUNK] * 5


def keys(value):
    """The names that stand in a chunk, at every depth, in their order."""
    if isinstance(value, dict):
        return [(name, keys(inner)) for name, inner in value.items() if name not in ENGINES_OWN]
    return [keys(inner) for inner in value] if isinstance(value, list) else None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_replayed_stream_has_the_chunks_of_the_engines_own(engine, path):
    async with running_gateway([engine], cache=CacheConfig(mode="serve")) as gateway:
        _, first, again = await stored(gateway, engine, path=path, stream_options=USAGE)
    ours, theirs = events_of(again.body), events_of(first.body)
    spoken = text_of if "chat" in path else completion_text_of
    assert spoken(ours) == spoken(theirs)
    assert keys(ours[0]) == keys(theirs[0])
    assert keys(ours[1]) == keys(theirs[1])
    assert keys(ours[-3]) == keys(theirs[-3])
    assert ours[-3]["choices"][0]["finish_reason"] == "stop"
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [ours[-2]["usage"][it] for it in counts] == [theirs[-2]["usage"][it] for it in counts]
    assert ours[-1] == theirs[-1] == "[DONE]"
    assert {it["id"] for it in ours[:-1]} == {f"{theirs[0]['id'].split('-')[0]}-{request_id_of(again)}"}
    assert len({it["created"] for it in ours[:-1]}) == 1
    of_first, of_again = dict(first.headers), dict(again.headers)
    assert of_again[b"content-type"] == of_first[b"content-type"]
    assert of_again[b"cache-status"] == b"phasewise; hit; detail=exact"
    assert of_again[b"age"] == b"0"


async def test_the_same_answer_is_given_as_a_plain_reply(engine):
    async with running_gateway([engine], cache=CacheConfig(mode="serve")) as gateway:
        body, first, _ = await stored(gateway, engine)
        plain = await gateway.fetch("POST", "/v1/chat/completions", {**body, "stream": False})
        own = await gateway.fetch(
            "POST", "/v1/chat/completions", {**body, "stream": False}, [(b"cache-control", b"no-store")]
        )
    reply, engines = orjson.loads(plain.body), orjson.loads(own.body)
    assert reply["choices"] == [
        {name: value for name, value in engines["choices"][0].items() if name != "routed_experts"}
    ]
    assert reply["choices"][0]["message"]["content"] == text_of(events_of(first.body))
    assert reply["object"] == engines["object"]
    assert dict(plain.headers)[b"server-timing"].startswith(b"total;dur=")
    assert b"cache_look_up" in dict(plain.headers)[b"server-timing"]


async def test_openais_client_reads_both_forms(engine):
    async with running_gateway([engine], cache=CacheConfig(mode="serve")) as gateway:
        body, first, _ = await stored(gateway, engine)
        async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
            asked = {name: body[name] for name in ("model", "messages", "max_tokens")}
            plain = await client.chat.completions.create(**asked)
            stream = await client.chat.completions.create(**asked, stream=True, stream_options=USAGE)
            chunks = [chunk async for chunk in stream]
    expected = text_of(events_of(first.body))
    assert plain.choices[0].message.content == expected
    assert "".join(it.choices[0].delta.content or "" for it in chunks if it.choices) == expected
    assert chunks[-1].usage == plain.usage
    assert engine.requests_finished == 1


# --- its time ---------------------------------------------------------------------------------------------


async def test_a_hit_has_its_times_and_tokens_and_no_attempt(engine):
    async with running_gateway([engine], cache=CacheConfig(mode="serve")) as gateway:
        _, first, again = await stored(gateway, engine)
        made, served = [await gateway.timeline(request_id_of(it)) for it in (first, again)]
    assert (served["outcome"], served["attempts"], served["finish"]) == ("succeeded", [], "stop")
    assert (served["in"], served["out"]) == (made["in"], made["out"])
    assert served["cache"]["result"] == "hit_exact"
    assert served["cache"]["tokens"] == made["out"]
    timeline = from_record(served)
    breakdown = ttft_breakdown(timeline)
    assert {it.part for it in breakdown.parts} == {Part.GATEWAY_WAIT, Part.CACHE_LOOK_UP}
    assert breakdown.unexplained_s == pytest.approx(0)
    assert len(timeline.content_times_s) == 1
    assert timeline.client_blocked_s is not None


async def test_a_client_that_asks_gets_the_timing_of_a_hit(engine):
    async with running_gateway([engine], cache=CacheConfig(mode="serve")) as gateway:
        body, _, _ = await stored(gateway, engine)
        reply = await gateway.fetch("POST", "/v1/chat/completions", body, [(b"x-phasewise-timing", b"1")])
    *_, comment, done, _ = reply.body.split(b"\n\n")
    assert comment.startswith(b": phasewise ttft_ms=")
    assert b" cache_look_up_ms=" in comment
    assert done == b"data: [DONE]"


# --- what is not replayed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"max_tokens": 3, "ignore_eos": True}, {"temperature": 0.9}, {"seed": 3}])
async def test_an_answer_that_did_not_end_by_itself_or_is_not_to_be_had_twice_is_made_again(engine, fields):
    async with running_gateway([engine], cache=CacheConfig(mode="serve")) as gateway:
        for _ in range(2):
            await gateway.chat(**{**LONG_ENOUGH, **fields})
            await asyncio.sleep(0.02)
    assert engine.requests_finished == 2


async def test_shadow_mode_serves_nothing_and_says_what_it_would_have(engine):
    async with running_gateway([engine], cache=CacheConfig(mode="shadow")) as gateway:
        replies = []

        async def asked():
            replies.append(await gateway.chat(**LONG_ENOUGH))
            return b"shadow_exact" in dict(replies[-1].headers)[b"cache-status"]

        await eventually(asked)
        timeline = await gateway.timeline(request_id_of(replies[-1]))
    assert engine.requests_finished == len(replies)
    assert len(timeline["attempts"]) == 1
    assert timeline["cache"]["tokens"] == timeline["out"]


async def test_a_header_that_names_no_namespace_is_rejected(engine):
    async with running_gateway([engine], cache=CacheConfig(mode="serve")) as gateway:
        reply = await gateway.chat(headers=[(b"x-phasewise-cache-namespace", b"No Name")])
    assert reply.status == 400
    assert orjson.loads(reply.body)["error"]["param"] == "x-phasewise-cache-namespace"
    assert b"No Name" not in reply.body


async def test_without_a_cache_nothing_is_said_of_one(engine):
    async with running_gateway([engine]) as gateway:
        reply = await gateway.chat()
        timeline = await gateway.timeline(request_id_of(reply))
    assert b"cache-status" not in dict(reply.headers)
    assert "cache" not in timeline
