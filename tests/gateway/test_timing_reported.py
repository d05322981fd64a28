"""Clients learn where the time of their own request went, over a real socket."""

from __future__ import annotations

from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import events_of, running_gateway

ASKS = [(b"x-phasewise-timing", b"1")]


def comments(body):
    return [part for part in body.split(b"\n\n") if part.startswith(b":")]


async def test_a_plain_reply_says_what_its_time_was_made_of():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.chat()
    reported = dict(metric.split(b";dur=") for metric in dict(reply.headers)[b"server-timing"].split(b", "))
    assert {b"total", b"gateway_wait", b"prefill", b"decode", b"unexplained"} <= reported.keys()
    parts_ms = sum(float(value) for name, value in reported.items() if name != b"total")
    assert abs(parts_ms - float(reported[b"total"])) < 0.01


async def test_a_stream_says_it_before_its_end_if_it_was_asked_to():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.chat(stream=True, headers=ASKS)
    *_, comment, done, nothing = reply.body.split(b"\n\n")
    assert comment.startswith(b": phasewise ttft_ms=")
    assert b" prefill_ms=" in comment
    assert b" tpot_ms=" in comment
    assert (done, nothing) == (b"data: [DONE]", b"")


async def test_a_stream_that_was_not_asked_holds_the_engines_bytes_alone():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.chat(stream=True)
        rejected = await gateway.chat(stream=True, headers=[(b"x-phasewise-timing", b"yes")])
    assert comments(reply.body) == comments(rejected.body) == []
    assert events_of(reply.body)[-1] == "[DONE]"


async def test_an_error_says_nothing_of_time():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.chat(model="not-served", headers=ASKS)
    assert b"server-timing" not in dict(reply.headers)
