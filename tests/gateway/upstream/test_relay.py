"""What is passed on of a worker's reply, however the worker and its connection end."""

from __future__ import annotations

import asyncio
import time

import pytest

from phasewise.gateway.upstream.response import Answer, StreamRelay
from tests.gateway.harness import events_of, listening, request_id_of, running_gateway
from tests.gateway.server.test_client_timeouts import STREAM_HEAD, chunked, event

DONE = b"data: [DONE]\n\n"
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
EVENTS = [event("a"), event("b"), FINISH, USAGE, DONE]


async def dies_after_its_answer(head, body, writer):
    """As an engine that is killed between the end of its answer and that of the reply."""
    assert b" /v1/chat/completions " in head
    writer.write(STREAM_HEAD + b"".join(map(chunked, EVENTS)))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": True}},
        {
            "stream_options": {"include_usage": True},
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    ],
)
async def test_an_answer_whose_worker_died_after_its_end_is_whole_and_not_taken_up_elsewhere(fields):
    async with listening(dies_after_its_answer) as worker, listening(dies_after_its_answer) as other:
        workers = [worker, other.model_copy(update={"name": "other"})]
        async with running_gateway(workers) as gateway:
            reply = await gateway.chat(stream=True, **fields)
            timeline = await gateway.timeline(request_id_of(reply))
    assert reply.body == b"".join(EVENTS)
    assert timeline["outcome"] == "succeeded"
    assert [it["outcome"] for it in timeline["attempts"]] == ["succeeded"]


async def test_an_answer_whose_worker_died_before_its_end_is_not_whole():
    async def dies(head, body, writer):
        writer.write(STREAM_HEAD + b"".join(map(chunked, EVENTS[:-1])) + chunked(b"data: [DO"))
        await writer.drain()
        writer.close()

    async with listening(dies) as worker, running_gateway([worker], resume="off") as gateway:
        reply = await gateway.chat(stream=True)
    assert events_of(reply.body)[-1]["error"]["code"].startswith("stream_")


def cpu_s_to_read_event_of(pieces):
    """The least of three tries, as the machine does other things too."""
    tries = []
    for _ in range(3):
        relay = StreamRelay(Answer(), hide_usage=False)
        relay.feed(b'data: {"x": "', 0.0)
        begun_s = time.thread_time()
        for _ in range(pieces):
            relay.feed(b"y" * 1024, 0.0)
        tries.append(time.thread_time() - begun_s)
    return min(tries)


def test_an_event_in_many_pieces_costs_as_much_for_each_of_them():
    # Four times the pieces, each joined to all before it, would take sixteen times as long.
    assert cpu_s_to_read_event_of(8000) < 10 * cpu_s_to_read_event_of(2000)


@pytest.mark.parametrize("field", [b"cache_salt", b"kv_transfer_params"])
async def test_a_rejection_that_repeats_what_the_gateway_put_in_is_not_passed_on(field):
    async def rejects(head, body, writer):
        reported = b'{"error":{"message":"bad input: {%b: secret}"}}' % field
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(reported), reported))

    async with listening(rejects) as worker, running_gateway([worker]) as gateway:
        reply = await gateway.chat()
    assert reply.status == 400
    assert b"secret" not in reply.body
    assert b"the engine rejected the request" in reply.body
