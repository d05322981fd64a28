"""Answers that a client does not read, over real connections: they neither pile up nor stay for ever."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct

import orjson
import pytest

from phasewise.core.timeline import Outcome, Timeline
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.server.client import ClientTimeouts
from phasewise.gateway.server.edge import EdgeConnection
from tests.gateway.harness import ADMIN_KEY, chat_body, eventually, listening, running_gateway
from tests.gateway.server.test_client_timeouts import SHORT, STREAM_HEAD, chunked, event, head_of
from tests.gateway.test_slow_readers import held_up, small_window

NEVER = ClientTimeouts(body_s=600, send_s=600)
LARGE_BYTES = 2_000_000
PAGE = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"


def unsent_bytes():
    """What the gateway of this process holds for clients."""
    connections = [it for it in gc.get_objects() if isinstance(it, EdgeConnection)]
    return sum(it.transport.get_write_buffer_size() for it in connections if it in it.connections)


async def send(client, data):
    await asyncio.get_running_loop().sock_sendall(client, data)


async def read_to_the_end(client, pause_s=0.0):
    """All that comes until the connection ends, well or not."""
    loop, data = asyncio.get_running_loop(), b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(60):
            while part := await loop.sock_recv(client, 65536):
                data += part
                await asyncio.sleep(pause_s)
    return data


def leave(client):
    """Reset the connection, as a process does that ends with unread bytes."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def asking(name, *extra, **fields):
    body = orjson.dumps(chat_body(**fields))
    return head_of(body, b"x-request-id: " + name.encode(), *extra) + body


async def large_plain(head, body, writer):
    reply = orjson.dumps({"id": "x", "filling": "y" * LARGE_BYTES})
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply)


async def large_event(head, body, writer):
    """A stream that is written at once, and whose end then has to wait for the client."""
    text = event("y" * 300_000)
    writer.write(STREAM_HEAD + chunked(text) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


# --- whole answers ---------------------------------------------------------------------------------------


async def test_answers_to_requests_sent_ahead_are_not_piled_up_for_a_client_that_does_not_read():
    async with running_engines(1) as engines, running_gateway(engines, client_timeouts=SHORT) as gateway:
        page_bytes = len((await gateway.fetch("GET", "/openapi.json")).body)
        async with small_window(gateway) as client:
            await send(client, PAGE * 90)
            most = 0

            def cut():
                nonlocal most
                now = unsent_bytes()
                most = max(most, now)
                return most > 0 and now == 0

            await eventually(cut, timeout_s=60)
            assert most < 3 * page_bytes
            assert len(await read_to_the_end(client)) < 100 * page_bytes


async def test_a_client_that_reads_late_gets_every_answer_it_asked_for_ahead():
    async with running_engines(1) as engines, running_gateway(engines, client_timeouts=NEVER) as gateway:
        page = (await gateway.fetch("GET", "/openapi.json")).body
        async with small_window(gateway) as client:
            await send(client, PAGE * 20 + PAGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            await asyncio.sleep(0.5)
            data = await read_to_the_end(client)
    assert data.count(page) == 21


@pytest.mark.parametrize("extra", [(), (b"connection: close",)])
async def test_a_client_that_never_reads_its_plain_answer_is_cut_off(extra):
    async with (
        listening(large_plain) as worker,
        running_gateway([worker], limits={"read_s": 0.5}) as gateway,
        small_window(gateway) as client,
    ):
        await send(client, asking("plain", *extra))
        await eventually(lambda: unsent_bytes() > LARGE_BYTES // 2)
        await eventually(lambda: unsent_bytes() == 0, timeout_s=60)
        assert len(gateway.app.edge) == 0
        assert len(await read_to_the_end(client)) < LARGE_BYTES // 2


async def test_a_client_that_reads_slowly_gets_all_of_its_plain_answer():
    async with listening(large_plain) as worker, running_gateway([worker], limits={"read_s": 1.0}) as gateway:
        async with small_window(gateway) as client:
            await send(client, asking("slowly", b"connection: close"))
            data = await read_to_the_end(client, pause_s=0.005)
        assert len(data) > LARGE_BYTES
        assert len(gateway.app.edge) == 0


# --- the end of a stream ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("leaves", "why"), [(True, "client_left"), (False, "client_stalled")])
async def test_a_stream_of_which_the_client_did_not_take_the_end_did_not_succeed(leaves, why):
    client_timeouts = NEVER if leaves else ClientTimeouts(body_s=30, send_s=1.0, look_every_s=0.05)
    async with (
        listening(large_event) as worker,
        running_gateway([worker], client_timeouts=client_timeouts) as gateway,
    ):
        async with small_window(gateway) as client:
            await send(client, asking("the-end", stream=True))
            await held_up(gateway)
            if leaves:
                leave(client)
            timeline = await gateway.timeline_of_client("the-end")
        assert (timeline["outcome"], timeline["why"]) == ("cancelled", why)
        assert gateway.under_way == 0


async def test_a_slow_reader_too_learns_that_the_gateway_stops(caplog):
    async def endless(head, body, writer):
        writer.write(STREAM_HEAD)
        while not writer.transport.is_closing():
            writer.write(chunked(event("y" * 1000)))
            await writer.drain()
            await asyncio.sleep(0.001)

    raised = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with listening(endless) as worker, contextlib.AsyncExitStack() as serving:
        gateway = await serving.enter_async_context(running_gateway([worker], drain_s=0.5))
        async with small_window(gateway) as client:
            await send(client, asking("slow", stream=True))
            await held_up(gateway)
            await serving.aclose()
            data = await read_to_the_end(client)
    assert b"stream_gateway_stopped" in data
    assert raised == []


# --- pages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_reader_of_timelines_that_stops_reading_or_leaves_is_not_served_for_ever(leaves):
    request = b"GET /phasewise/v1/requests?limit=2000 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
    client_timeouts = NEVER if leaves else SHORT
    async with (
        running_engines(1) as engines,
        running_gateway(engines, client_timeouts=client_timeouts) as gateway,
    ):
        for number in range(500):
            gateway.app.gateway.timelines.record(
                Timeline(f"r{number}", 1.0, "m" * 4000, Outcome.SUCCEEDED, 1.0)
            )
        async with small_window(gateway) as client:
            await send(client, request + ADMIN_KEY.encode() + b"\r\n\r\n")
            await eventually(lambda: unsent_bytes() > 0)
            assert len(gateway.app.gateway.clients) == 1
            if leaves:
                leave(client)
            await eventually(lambda: len(gateway.app.gateway.clients) == 0)
