"""Workers that answer and fail, over real sockets: who is spared them, and how they are taken back."""

from __future__ import annotations

import asyncio

import orjson

from phasewise.fake_engine.fleet import running_engines
from phasewise.state import breakers
from phasewise.state.breakers import FAILURES_TO_OPEN
from tests.gateway.harness import events_of, eventually, request_id_of, running_gateway


async def worker_names(gateway, reply):
    timeline = await gateway.timeline(request_id_of(reply))
    return [attempt["worker"][0] for attempt in timeline["attempts"]]


def rests(gateway, name):
    worker = gateway.app.gateway.cluster.state(name).worker
    return gateway.app.gateway.pipeline._world.breakers.is_open(worker.ref)


async def test_a_worker_that_fails_everything_is_soon_left_alone_and_no_client_notices(monkeypatch):
    for name in ("FIRST_REST_S", "LONGEST_REST_S"):
        monkeypatch.setattr(breakers, name, 600.0)
    async with running_engines(2) as pair, running_gateway(pair) as gateway:
        pair[0].inject("error")
        replies = [await gateway.chat() for _ in range(FAILURES_TO_OPEN)]
        assert rests(gateway, "w0")
        later = await gateway.chat()
        assert {reply.status for reply in [*replies, later]} == {200}
        assert [await worker_names(gateway, reply) for reply in replies] == [["w0", "w1"]] * FAILURES_TO_OPEN
        assert await worker_names(gateway, later) == ["w1"]


async def test_a_worker_that_is_well_again_is_tried_and_taken_back():
    async with running_engines(2) as pair, running_gateway(pair) as gateway:
        pair[0].inject("error", times=FAILURES_TO_OPEN)
        for _ in range(FAILURES_TO_OPEN):
            await gateway.chat()
        assert rests(gateway, "w0")

        async def taken_back():
            await gateway.chat()
            return not rests(gateway, "w0")

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


async def test_clients_whose_requests_are_refused_by_the_engine_do_not_make_it_rest():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        replies = [await gateway.chat(max_tokens=10**9) for _ in range(2 * FAILURES_TO_OPEN)]
        assert {reply.status for reply in replies} == {400}
        assert orjson.loads(replies[0].body)["error"]
        assert not rests(gateway, "w0")
