"""Requests under way can be looked at, as they stand, without disturbing them."""

from __future__ import annotations

import asyncio
import contextlib

import orjson
import pytest

from phasewise.gateway.processes import records as all_records
from tests.gateway.harness import ADMIN, eventually, listening, running_gateway
from tests.gateway.server.test_client_timeouts import STREAM_HEAD, chunked, event

OPEN = "/phasewise/v1/requests/open"


class HeldWorker:
    """A worker that sends some content and the rest only on demand."""

    def __init__(self):
        self.may_end = asyncio.Event()

    async def answer(self, head, body, writer):
        writer.write(STREAM_HEAD + chunked(event()) + chunked(event()))
        await self.may_end.wait()
        writer.write(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


@pytest.fixture
async def held():
    worker = HeldWorker()
    async with listening(worker.answer) as stub, running_gateway([stub]) as gateway:
        yield gateway, worker


async def look(gateway, query=""):
    reply = await gateway.fetch("GET", OPEN + query, headers=ADMIN)
    assert reply.status == 200
    return [orjson.loads(line) for line in reply.body.splitlines()], dict(reply.headers)


@contextlib.asynccontextmanager
async def asking(gateway, count):
    """Requests that were sent one after the other and have had their first content."""
    tasks = []
    for number in range(count):
        name = [(b"x-request-id", b"r%d" % number)]
        tasks.append(asyncio.create_task(gateway.chat(headers=name, stream=True)))

        async def has_content(number=number):
            records, _ = await look(gateway)
            return len(records) > number and len(records[number]["content"]) == 2

        await eventually(has_content)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


async def test_a_request_is_open_until_it_has_ended(held):
    gateway, worker = held
    assert (await look(gateway))[0] == []
    async with asking(gateway, 1) as (task,):
        (record,), headers = await look(gateway)
        assert (record["outcome"], record["client_id"], record["v"]) == ("unfinished", "r0", 1)
        assert [it["worker"][0] for it in record["attempts"]] == ["stub"]
        assert record["attempts"][0]["outcome"] == "unfinished"
        assert headers[b"x-phasewise-open"] == b"1"
        (later,), _ = await look(gateway)
        assert later["end"] > record["end"]
        worker.may_end.set()
        assert (await task).status == 200
        ended = await gateway.timeline_of_client("r0")
        assert (ended["outcome"], len(ended["attempts"])) == ("succeeded", 1)
        assert (await look(gateway))[0] == []


async def test_the_longest_open_come_first_and_no_more_than_asked_for(held, monkeypatch):
    monkeypatch.setattr(all_records, "OPEN_AT_ONCE", 2)
    gateway, _ = held
    async with asking(gateway, 3):
        records, _ = await look(gateway)
        assert [it["client_id"] for it in records] == ["r0", "r1", "r2"]
        records, headers = await look(gateway, "?limit=2")
        assert [it["client_id"] for it in records] == ["r0", "r1"]
        assert headers[b"x-phasewise-open"] == b"3"


async def test_a_request_whose_client_left_is_no_longer_open(held):
    gateway, _ = held
    async with asking(gateway, 1):
        assert len(gateway.app.gateway.open_requests) == 1
    await eventually(lambda: len(gateway.app.gateway.open_requests) == 0)


async def test_what_is_open_is_for_admins(held):
    gateway, _ = held
    assert (await gateway.fetch("GET", OPEN)).status == 401
    assert (await gateway.fetch("GET", OPEN + "?limit=x", headers=ADMIN)).status == 400
