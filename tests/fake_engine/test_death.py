"""A fake engine that dies takes every connection with it, as a process does."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import uvloop

from phasewise.fake_engine.engine import FakeEngine


def test_a_connection_that_was_taken_in_the_moment_of_death_is_closed_too():
    # asyncio's own loop forgets such a connection by itself, whoever serves on it.
    uvloop.run(_connect_and_die())


async def _connect_and_die():
    for turns in range(6):
        engine = FakeEngine()
        await engine.start()
        connecting = asyncio.ensure_future(asyncio.open_connection("127.0.0.1", engine.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        engine.die()
        try:
            reader, writer = await connecting
        except OSError:
            continue
        finally:
            await engine.stop()
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.transport.abort()
