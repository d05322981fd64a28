"""Answers that are written at once keep to HTTP, whatever comes over the connection."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import ADMIN_KEY, chat_body, eventually, listening, running_gateway
from tests.gateway.server.test_client_timeouts import STREAM_HEAD, chunked, connected, event, head_of

DONE = b"data: [DONE]\n\n"


async def read_reply(reader):
    """The head and the body of one reply, by its framing."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    if b"transfer-encoding: chunked" not in head:
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head, await asyncio.wait_for(reader.readexactly(length), 60)
    body = b""
    while size := int(await asyncio.wait_for(reader.readline(), 60), 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return head, body


def asking(text="hi", *extra, **fields):
    body = orjson.dumps(chat_body(text, **fields))
    return head_of(body, *extra) + body


async def test_requests_sent_ahead_are_answered_in_order_streamed_or_not():
    names = [b"one", b"two", b"three", b"four"]
    async with (
        running_engines(1) as engines,
        running_gateway(engines) as gateway,
        connected(gateway) as (reader, writer),
    ):
        for name in names:
            writer.write(asking("hi", b"x-request-id: " + name, stream=name in {b"one", b"four"}))
        replies = [await read_reply(reader) for _ in names]
    for name, (head, body) in zip(names, replies, strict=True):
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"x-client-request-id: " + name in head
        assert body.endswith(DONE) == (name in {b"one", b"four"})


async def test_a_client_that_leaves_with_requests_sent_ahead_stops_the_one_that_is_answered():
    left = asyncio.Event()

    async def endless(head, body, writer):
        writer.write(STREAM_HEAD)
        while not writer.transport.is_closing():
            writer.write(chunked(event()))
            await asyncio.sleep(0.01)
        left.set()

    async with listening(endless) as worker, running_gateway([worker]) as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(asking("hi", b"x-request-id: first", stream=True) + asking("hi", stream=True))
            await asyncio.wait_for(reader.readuntil(b"data: "), 60)
        timeline = await gateway.timeline_of_client("first")
        assert (timeline["outcome"], timeline["why"]) == ("cancelled", "client_left")
        await asyncio.wait_for(left.wait(), 60)


async def test_a_client_is_notified_of_the_end_of_its_connection():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        for stream in (False, True):
            async with connected(gateway) as (reader, writer):
                writer.write(asking("hi", b"connection: close", stream=stream))
                reply = await asyncio.wait_for(reader.read(1_000_000), 60)
                while more := await asyncio.wait_for(reader.read(1_000_000), 60):
                    reply += more
            assert b"\r\nconnection: close\r\n" in reply.partition(b"\r\n\r\n")[0]
            assert reply.endswith(b"0\r\n\r\n") == stream


@pytest.mark.parametrize(
    ("line", "has_body"),
    [
        (b"HEAD /health HTTP/1.1", False),
        (b"HEAD /phasewise/v1/requests/open HTTP/1.1", False),
        (b"GET /health HTTP/1.0", True),
        (b"GET /phasewise/v1/requests/open HTTP/1.0", False),
    ],
)
async def test_heads_and_old_clients_are_answered_without_chunks(line, has_body):
    async with (
        running_engines(1) as engines,
        running_gateway(engines) as gateway,
        connected(gateway) as (reader, writer),
    ):
        admin = b"authorization: Bearer %b" % ADMIN_KEY.encode()
        writer.write(line + b"\r\nhost: localhost\r\n" + admin + b"\r\nconnection: close\r\n\r\n")
        head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert bool(body) is has_body


async def test_the_leaving_of_a_client_with_a_long_prompt_is_noticed():
    over = asyncio.Event()

    async def silent(head, body, writer):
        await over.wait()

    async with listening(silent) as worker, running_gateway([worker]) as gateway:
        async with connected(gateway) as (_, writer):
            writer.write(asking("word " * 100_000, b"x-request-id: long", stream=True))
            await eventually(lambda: gateway.under_way == 1)
        assert (await gateway.timeline_of_client("long"))["why"] == "client_left"
        over.set()


EVENTS = [event("a"), event("b"), event('say "c"'), b": ping\n\n", event("d"), event("e"), DONE]


@pytest.mark.parametrize("size", [1, 7, 40, 100, 1000, 100_000])
async def test_however_a_worker_cuts_its_stream_the_client_reads_the_same(size):
    framed = b"".join(map(chunked, EVENTS)) + b"0\r\n\r\n"

    async def in_pieces(head, body, writer):
        writer.write(STREAM_HEAD)
        for start in range(0, len(framed), size):
            writer.write(framed[start : start + size])
            await writer.drain()
            await asyncio.sleep(0.001)

    async with listening(in_pieces) as worker, running_gateway([worker]) as gateway:
        reply = await gateway.chat(stream=True)
        again = await gateway.chat(stream=True)
    assert reply.body == again.body == b"".join(EVENTS)
