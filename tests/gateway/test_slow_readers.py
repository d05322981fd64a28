"""A client that is slow to read shows in its timeline, and one that reads does not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import SimpleNamespace

import orjson
import pytest

from phasewise.core.timeline_record import UNIT_S
from phasewise.gateway.server.client import WAITED_S, Client
from tests.gateway.harness import ADMIN, chat_body, eventually, listening, request_id_of, running_gateway
from tests.gateway.server.test_client_timeouts import STREAM_HEAD, chunked, event, head_of

CHUNKS = 400
CHUNK_TEXT = "y" * 1000
HELD_UP_S = 0.1
ASLEEP_S = 2.0


async def long_stream(head, body, writer):
    """400 KB in small chunks, one by one, as fast as they are taken."""
    writer.write(STREAM_HEAD)
    for _ in range(CHUNKS):
        writer.write(chunked(event(CHUNK_TEXT)))
        await writer.drain()
        await asyncio.sleep(0.0005)
    writer.write(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def small_window(gateway):
    """A raw connection whose kernel takes little that is not read."""
    host, port = gateway.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    try:
        yield client
    finally:
        client.close()


async def ask(client, name):
    body = orjson.dumps(chat_body(stream=True))
    extra = [b"x-request-id: " + name.encode(), b"connection: close"]
    await asyncio.get_running_loop().sock_sendall(client, head_of(body, *extra) + body)


async def read_all(client):
    loop, size = asyncio.get_running_loop(), 0
    while data := await loop.sock_recv(client, 65536):
        size += len(data)
    return size


async def held_up(gateway):
    """The open request, once it has waited a while for its client."""

    async def waiting():
        reply = await gateway.fetch("GET", "/phasewise/v1/requests/open", headers=ADMIN)
        records = map(orjson.loads, reply.body.splitlines())
        return next((it for it in records if it.get("blocked", 0) * UNIT_S > HELD_UP_S), None)

    return await eventually(waiting)


async def test_the_time_a_stream_waited_for_its_client_is_the_clients():
    async with listening(long_stream) as worker, running_gateway([worker]) as gateway:
        async with small_window(gateway) as client:
            await ask(client, "sleepy")
            seen = await held_up(gateway)
            assert len(seen["content"]) * len(CHUNK_TEXT) < 100_000, "most was sent before anybody noticed"
            assert await read_all(client) > CHUNKS * len(CHUNK_TEXT)
        timeline = await gateway.timeline_of_client("sleepy")
    assert timeline["outcome"] == "succeeded"
    assert HELD_UP_S < timeline["blocked"] * UNIT_S < timeline["end"] * UNIT_S


async def test_a_client_that_reads_is_hardly_waited_for():
    async with listening(long_stream) as worker, running_gateway([worker]) as gateway:
        async with small_window(gateway) as client:
            await ask(client, "sleepy")
            await asyncio.sleep(ASLEEP_S)
            await read_all(client)
        slow = await gateway.timeline_of_client("sleepy")
        quick = await gateway.timeline(request_id_of(await gateway.chat(stream=True)))
    # Client and gateway share this loop: now and then one of them waits for the other's turn.
    assert share_blocked(quick) < share_blocked(slow) / 3


def share_blocked(timeline):
    return timeline["blocked"] / timeline["end"]


async def test_nobody_sees_how_a_plain_answer_is_read():
    async def plain(head, body, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    async with listening(plain) as worker, running_gateway([worker]) as gateway:
        timeline = await gateway.timeline(request_id_of(await gateway.chat()))
    assert "blocked" not in timeline


@pytest.mark.parametrize(("waited_s", "blocked_s"), [(WAITED_S / 2, 0.0), (0.25, 0.25)])
def test_a_wait_that_was_cut_off_counts_if_it_was_one(waited_s, blocked_s):
    client = Client(SimpleNamespace())
    client.streaming, client.sending_since_s = True, 100.0
    assert client.blocked_until(100.0 + waited_s) == blocked_s
