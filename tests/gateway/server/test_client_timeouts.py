"""Clients that keep a request waiting are given up on; engines that do are another matter."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from types import SimpleNamespace

import orjson

from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.server.client import Client, ClientTimeouts, ClientWatch
from tests.gateway.harness import chat_body, events_of, eventually, listening, running_gateway

SHORT = ClientTimeouts(body_s=0.3, send_s=0.3, look_every_s=0.05)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text="y"):
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + b"\n\n"


def chunked(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def connected(gateway):
    """A connection on which the test decides what is sent and read, and when."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head_of(body, *extra):
    lines = [
        b"POST /v1/chat/completions HTTP/1.1",
        b"host: localhost",
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        *extra,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


# --- bodies ----------------------------------------------------------------------------------------------


async def test_a_body_that_does_not_come_is_given_up_with_an_answer_and_the_connection_closed():
    body = orjson.dumps(chat_body())
    async with running_engines(1) as engines, running_gateway(engines, client_timeouts=SHORT) as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(head_of(body) + body[:5])
            reply = await asyncio.wait_for(reader.read(), 60)
        head, _, reported = reply.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in head
        assert b"x-request-id: " in head
        assert orjson.loads(reported)["error"]["code"] == "body_timeout"
        assert engines[0].requests_finished == 0
        assert (await gateway.chat()).status == 200
        metrics = await gateway.fetch("GET", "/metrics")
        assert b'outcome="rejected",reason="body_timeout"' in metrics.body


async def test_dribbling_does_not_move_the_deadline():
    body = orjson.dumps(chat_body("word " * 100))
    async with (
        running_engines(1) as engines,
        running_gateway(engines, client_timeouts=SHORT) as gateway,
        connected(gateway) as (reader, writer),
    ):
        writer.write(head_of(body))
        reading = asyncio.create_task(reader.read())
        for index in range(100):
            if reading.done():
                break
            writer.write(body[index : index + 1])
            await asyncio.sleep(0.05)
        assert (await asyncio.wait_for(reading, 60)).startswith(b"HTTP/1.1 408 ")
        assert index < 99


async def test_a_body_that_comes_in_time_is_served_however_it_is_cut():
    body = orjson.dumps(chat_body())
    async with running_engines(1) as engines, running_gateway(engines, client_timeouts=SHORT) as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(head_of(body, b"connection: close") + body[:5])
            await asyncio.sleep(0.1)
            writer.write(body[5:])
            reply = await asyncio.wait_for(reader.read(), 60)
        assert reply.startswith(b"HTTP/1.1 200 ")


# --- answers ---------------------------------------------------------------------------------------------


async def endless(head, body, writer):
    writer.write(STREAM_HEAD)
    while True:
        writer.write(chunked(event("y" * 60_000)))
        await writer.drain()


async def test_a_client_that_stops_reading_is_disconnected_and_recorded_as_stalled(caplog):
    body = orjson.dumps(chat_body(stream=True))
    with caplog.at_level(logging.WARNING):
        async with listening(endless) as worker, running_gateway([worker], client_timeouts=SHORT) as gateway:
            async with connected(gateway) as (_, writer):
                writer.write(head_of(body, b"x-request-id: reads-nothing") + body)
                timeline = await gateway.timeline_of_client("reads-nothing")
                assert (timeline["outcome"], timeline["why"]) == ("cancelled", "client_stalled")
                assert timeline["attempts"][0]["outcome"] == "cancelled"
                assert timeline["content"]
                assert gateway.under_way == 0
                await eventually(lambda: writer.transport.is_closing() or raises_on_write(writer))
            await eventually(lambda: len(gateway.app.gateway.clients) == 0)
            metrics = await gateway.fetch("GET", "/metrics")
            assert b'outcome="cancelled",reason="client_stalled"' in metrics.body
    assert not caplog.records


def raises_on_write(writer):
    """Whether the other side has gone; only a write shows it to a peer that does not read."""
    writer.write(b"x")
    return writer.transport.is_closing()


async def test_a_client_is_not_blamed_for_an_engine_that_takes_its_time():
    async def slow(head, body, writer):
        writer.write(STREAM_HEAD)
        for data in (event(), event(), b"data: [DONE]\n\n"):
            await asyncio.sleep(0.6)
            writer.write(chunked(data))
        writer.write(b"0\r\n\r\n")

    async with listening(slow) as worker, running_gateway([worker], client_timeouts=SHORT) as gateway:
        assert events_of((await gateway.chat(stream=True)).body)[-1] == "[DONE]"


# --- the watch -------------------------------------------------------------------------------------------


def make_client():
    drops = []
    return Client(SimpleNamespace(drop=lambda: drops.append(1))), drops


def test_only_waits_for_the_client_count_and_only_once():
    watch = ClientWatch(ClientTimeouts(body_s=30, send_s=60))
    client, drops = make_client()
    watch.add(client)
    watch.look(1000.0)
    client.sending_since_s = 1000.0
    watch.look(1060.0)
    assert (drops, client.stalled) == ([], False)
    watch.look(1060.1)
    watch.look(1061.0)
    assert (drops, client.stalled) == ([1], True)


def test_a_client_whose_request_has_ended_is_left_alone():
    watch = ClientWatch(ClientTimeouts())
    client, drops = make_client()
    watch.add(client)
    client.sending_since_s = 0.0
    watch.discard(client)
    watch.look(1000.0)
    assert drops == []
