"""What a connection does at the end of a reply, and what is kept of it after its own."""

from __future__ import annotations

import asyncio

import pytest

from phasewise.clients.http_client import HttpClient
from tests.gateway.harness import eventually, listening

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Noting:
    """A reader that lets every chunk pass."""

    def __init__(self):
        self.passed = b""

    def take(self, parts):
        self.passed += b"".join(parts)

    def takes_chunk(self, data, start, end):
        return True

    def pass_on(self, chunks):
        self.passed += chunks


async def test_bytes_after_the_end_of_a_reply_are_nobodys_and_end_the_connection():
    async def begins(head, body, writer):
        writer.write(HEAD + b"1\r\na\r\n")

    async with listening(begins) as worker:
        client, reader = HttpClient(worker.url), Noting()
        async with await client.send("POST", "/") as reply:
            reading = asyncio.ensure_future(reply.read_into(reader))
            await eventually(lambda: reader.passed == b"a")
            # Both happen before the waiting task sees the end.
            (connection,) = client._open
            connection.data_received(b"1\r\nb\r\n0\r\n\r\n")
            connection.data_received(b"5\r\nextra\r\n")
            await asyncio.wait_for(reading, 60)
        assert b"extra" not in reader.passed
        await eventually(lambda: not client._open)
        assert not client._idle


async def test_connections_that_the_server_closed_are_not_kept():
    served = []

    async def answers(head, body, writer):
        served.append(writer)
        await eventually(lambda: len(served) == 5)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with listening(answers) as worker:
        client = HttpClient(worker.url)
        await asyncio.gather(*(client.fetch("POST", "/") for _ in range(5)))
        assert len(client._idle) == 5
        for writer in served[1:]:
            writer.close()
        await eventually(lambda: len(client._idle) == 1)
        client.close()


@pytest.mark.parametrize("say", ["pause", "resume"])
async def test_a_reply_that_was_ended_has_nothing_to_hold_back(say):
    async def answers(head, body, writer):
        writer.write(HEAD + b"1\r\na\r\n")

    async with listening(answers) as worker:
        client = HttpClient(worker.url)
        async with await client.send("POST", "/") as reply:
            pass
        getattr(reply, say)()
        client.close()
