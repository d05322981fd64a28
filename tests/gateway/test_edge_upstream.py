"""Workers whose replies could be read in two ways have failed, and what they wrote reaches no client."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from tests.gateway.harness import chat_body, listening, running_gateway

ANSWER = orjson.dumps({"choices": [{"index": 0, "message": {"content": "s3cret"}}], "usage": {}})
LENGTH = b"content-length: %d\r\n" % len(ANSWER)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"

BROKEN = {
    "both lengths": OK + LENGTH + CHUNKED + b"\r\n" + ANSWER,
    "two lengths": OK + LENGTH + b"content-length: 5\r\n\r\n" + ANSWER,
    "a list of lengths": OK + b"content-length: 3, 3\r\n\r\n" + ANSWER,
    "a chunk size that is none": OK + CHUNKED + b"\r\nxyz\r\n" + ANSWER + b"\r\n0\r\n\r\n",
    "a chunk longer than it says": OK + CHUNKED + b"\r\n3\r\n" + ANSWER + b"\r\n0\r\n\r\n",
    "a folded line": OK + LENGTH + b"x: a\r\n b\r\n\r\n" + ANSWER,
    "bare line ends": (OK + LENGTH).replace(b"\r", b"") + b"\n" + ANSWER,
    "a zero byte in a header": OK + LENGTH + b"x: a\x00b\r\n\r\n" + ANSWER,
    "no HTTP": b"s3cret\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\r\ns3cret",
    "a head without end": OK + b"x: " + b"y" * 3_000_000,
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
async def test_a_reply_that_could_be_read_in_two_ways_is_a_failure(reply):
    async def answer(head, body, writer):
        writer.write(reply)

    async with listening(answer) as stub, running_gateway([stub]) as gateway:
        reported = await gateway.chat()
        assert reported.status in {503, 504}
        assert orjson.loads(reported.body)["error"]["code"] in {"all_attempts_failed", "attempts_timed_out"}
        assert b"s3cret" not in reported.body


async def test_a_reply_that_ends_too_early_is_a_failure():
    async def answer(head, body, writer):
        writer.write(OK + b"content-length: 1000\r\n\r\n" + ANSWER)
        writer.close()

    async with listening(answer) as stub, running_gateway([stub]) as gateway:
        reported = await gateway.chat()
        assert reported.status == 503
        assert b"s3cret" not in reported.body


async def test_a_second_reply_sent_along_is_nobodys_answer():
    other = ANSWER.replace(b"s3cret", b"for another")

    async def answer(head, body, writer):
        second = OK + b"content-length: %d\r\n\r\n" % len(other) + other
        writer.write(OK + LENGTH + b"\r\n" + ANSWER + second)

    async with listening(answer) as stub, running_gateway([stub]) as gateway:
        for _ in range(5):
            reported = await gateway.chat()
            assert reported.status in {200, 503}
            assert b"for another" not in reported.body


async def test_a_stream_whose_framing_breaks_ends_with_an_error():
    event = b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": "y"}}]}) + b"\n\n"

    async def answer(head, body, writer):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + CHUNKED
        writer.write(head + b"\r\n%x\r\n%b\r\n" % (len(event), event))
        await asyncio.sleep(0.05)
        writer.write(b"zz\r\nHTTP/1.1 200 OK\r\n\r\n")

    async with listening(answer) as stub, running_gateway([stub], resume="off") as gateway:
        reported = await gateway.fetch("POST", "/v1/chat/completions", chat_body(stream=True))
        assert reported.status == 200
        assert b'"stream_' in reported.body
        assert b"HTTP/1.1" not in reported.body
        assert b"[DONE]" not in reported.body
