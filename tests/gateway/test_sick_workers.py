"""Workers that answer and fail, over real sockets: who is spared them, and how they are taken back."""

from __future__ import annotations

import asyncio

import orjson

from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import UpstreamConfig
from phasewise.scheduling import breakers
from phasewise.scheduling.breakers import FAILURES_TO_OPEN
from tests.gateway.harness import events_of, eventually, listening, request_id_of, running_gateway

ERROR = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
CHUNK = b'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "y"}}]}\n\n'


async def worker_names(gateway, reply):
    timeline = await gateway.timeline(request_id_of(reply))
    return [attempt["worker"][0] for attempt in timeline["attempts"]]


def circuit_is_open(gateway, name):
    worker = gateway.app.gateway.cluster.state(name).worker
    return gateway.app.gateway.pipeline._world.breakers.is_open(worker.ref)


async def test_a_worker_that_fails_everything_is_soon_left_alone_and_no_client_notices(monkeypatch):
    for name in ("FIRST_OPEN_S", "LONGEST_OPEN_S"):
        monkeypatch.setattr(breakers, name, 600.0)
    async with running_engines(2) as pair, running_gateway(pair) as gateway:
        pair[0].inject("error")
        replies = [await gateway.chat() for _ in range(FAILURES_TO_OPEN)]
        assert circuit_is_open(gateway, "w0")
        later = await gateway.chat()
        assert {reply.status for reply in [*replies, later]} == {200}
        assert [await worker_names(gateway, reply) for reply in replies] == [["w0", "w1"]] * FAILURES_TO_OPEN
        assert await worker_names(gateway, later) == ["w1"]


async def test_a_worker_that_is_well_again_is_tried_and_taken_back():
    async with running_engines(2) as pair, running_gateway(pair) as gateway:
        pair[0].inject("error", times=FAILURES_TO_OPEN)
        for _ in range(FAILURES_TO_OPEN):
            await gateway.chat()
        assert circuit_is_open(gateway, "w0")

        async def taken_back():
            await gateway.chat()
            return not circuit_is_open(gateway, "w0")

        await eventually(taken_back)
        assert await worker_names(gateway, await gateway.chat()) == ["w0"]


async def test_while_the_only_worker_is_sick_requests_wait_and_are_served_when_it_is_well():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        engines[0].inject("error", times=FAILURES_TO_OPEN)
        replies = await asyncio.gather(*(gateway.chat(stream=True) for _ in range(30)))
        served = [reply for reply in replies if reply.status == 200]
        # Each of those lost has used up two of the failures.
        assert len(replies) - len(served) <= FAILURES_TO_OPEN // 2
        assert all(events_of(reply.body)[-1] == "[DONE]" for reply in served)
        assert gateway.under_way == 0


async def test_clients_whose_requests_are_rejected_by_the_engine_do_not_make_it_rest():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        replies = [await gateway.chat(max_tokens=10**9) for _ in range(2 * FAILURES_TO_OPEN)]
        assert {reply.status for reply in replies} == {400}
        assert orjson.loads(replies[0].body)["error"]
        assert not circuit_is_open(gateway, "w0")


async def test_one_request_tries_a_worker_and_the_others_follow_when_its_answer_begins(monkeypatch):
    for name in ("FIRST_OPEN_S", "LONGEST_OPEN_S"):
        monkeypatch.setattr(breakers, name, 0.01)
    ill, begins, writers = True, asyncio.Event(), []

    async def answer(_head, _body, writer):
        if ill:
            writer.write(ERROR)
            return
        writers.append(writer)
        writer.write(STREAM)
        await begins.wait()
        writer.write(CHUNK)

    async with (
        listening(answer) as stub,
        running_engines(1) as engines,
        running_gateway([stub, *engines]) as gateway,
    ):
        for _ in range(FAILURES_TO_OPEN):
            await gateway.chat()
        assert circuit_is_open(gateway, "stub")
        ill = False
        streams = []

        async def one_tries():
            # Requests that come while its circuit is open are served elsewhere.
            streams.append(asyncio.create_task(gateway.chat(stream=True)))
            await asyncio.sleep(0.05)
            return len(writers) == 1

        await eventually(one_tries)
        # The other worker seems to have more to do, and yet nobody else is sent here: nothing was said yet.
        gateway.app.gateway.ledger.book(gateway.app.gateway.cluster.state("w1").worker.ref, 10**6)
        assert {(await gateway.chat()).status for _ in range(3)} == {200}
        assert len(writers) == 1
        begins.set()

        async def others_follow():
            streams.append(asyncio.create_task(gateway.chat(stream=True)))
            await asyncio.sleep(0.05)
            return len(writers) >= 2

        await eventually(others_follow)
        assert not circuit_is_open(gateway, "stub")
        for writer in writers:
            writer.write(b"data: [DONE]\n\n")
            writer.transport.close()
        replies = await asyncio.gather(*streams)
        assert {events_of(reply.body)[-1] for reply in replies} == {"[DONE]"}


async def test_how_long_a_worker_may_be_silent_is_configured():
    async def never(_head, _body, _writer):
        await asyncio.Event().wait()

    async with (
        listening(never) as stub,
        running_gateway([stub], timeouts=None, upstream=UpstreamConfig(first_byte_s=0.1)) as gateway,
    ):
        reply = await gateway.chat()
        assert (reply.status, orjson.loads(reply.body)["error"]["code"]) == (504, "attempts_timed_out")
