"""A request's time in the gateway is split into its stages."""

from __future__ import annotations

import asyncio

import orjson

from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import chat_body, running_gateway

MS = 10
"""Units of a record in a millisecond."""


async def test_the_time_in_which_a_body_comes_is_reading():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        body = orjson.dumps(chat_body())
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nx-request-id: late-body\r\n\r\n" % len(body)
        )
        await asyncio.sleep(0.1)
        writer.write(body)
        assert b"200 OK" in await reader.readuntil(b"\r\n")
        writer.close()
        limits, reading, parsing, queue = (await gateway.timeline_of_client("late-body"))["in_gateway"]
        assert reading >= 90 * MS
        assert max(limits, parsing, queue) < reading
