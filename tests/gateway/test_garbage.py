"""Requests leave nothing behind that only the garbage collector would find: it rarely looks (server.py)."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from phasewise.clients.http_client import StreamedReply
from phasewise.clients.http_connection import Connection
from phasewise.gateway.server.client import Client
from phasewise.gateway.server.edge import EdgeConnection
from phasewise.gateway.upstream.call import Call
from tests.gateway.harness import eventually, listening, running_gateway
from tests.gateway.server.test_client_timeouts import STREAM_HEAD, chunked, event

KINDS = (Call, Client, EdgeConnection, StreamedReply, Connection)


def alive():
    return {kind.__name__: sum(isinstance(it, kind) for it in gc.get_objects()) for kind in KINDS}


@contextlib.contextmanager
def nothing_collected():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def answer_well(writer):
    writer.write(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def break_off(writer):
    writer.close()


async def say_no_http(writer):
    writer.write(b"no chunk's size\r\n")


async def say_nothing_more(writer):
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(chunked(b": still there\n\n"))
            await writer.drain()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("ending", [answer_well, break_off, say_no_http, say_nothing_more])
async def test_however_a_stream_ends_nothing_of_it_stays(ending):
    async def answer(head, body, writer):
        writer.write(STREAM_HEAD + chunked(event("a")) + chunked(event("b")))
        await writer.drain()
        await asyncio.sleep(0.01)
        await ending(writer)

    async def ask():
        # Who waits for more than comes leaves.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2 if ending is say_nothing_more else 10):
                await gateway.chat(stream=True)
        await eventually(lambda: gateway.under_way == 0)
        gateway.client.close()

    options = {"resume": "off", "poll_interval_s": 60}
    async with listening(answer) as worker, running_gateway([worker], **options) as gateway:
        await ask()
        with nothing_collected():
            before = alive()
            for _ in range(3):
                await ask()
            # What still closes, closes within a moment.
            await eventually(lambda: all(alive()[kind] <= count for kind, count in before.items()))
