"""More requests than slots: which wait, which are rejected, and that nothing is left behind."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import eventually, running_gateway, waiting_in, worker_for

PATIENT = [{"name": "default", "max_wait_s": 120.0}]


@pytest.fixture
async def engine():
    async with running_engines(1) as (engine,):
        engine.inject("slow", factor=20.0)
        yield engine


async def sent(gateway, text, *, waiting, under_way=1):
    """A request that has come as far as this, as a task."""
    task = asyncio.create_task(gateway.chat(text, max_tokens=30, ignore_eos=True))

    async def is_there():
        return gateway.under_way == under_way and await waiting_in(gateway.client) == waiting

    await eventually(is_there)
    return task


def rejection(reply):
    return reply.status, orjson.loads(reply.body)["error"]["code"]


async def test_with_one_slot_and_two_that_may_wait_the_fourth_is_rejected_and_the_others_served(engine):
    async with running_gateway(
        [worker_for(engine, slots=1)], queue={"max_waiting": 2}, slo_classes=PATIENT
    ) as gateway:
        served = [await sent(gateway, f"request {n}", waiting=n) for n in range(3)]
        fourth = await gateway.chat("request 3")
        assert rejection(fourth) == (503, "queue_full")
        assert int(dict(fourth.headers)[b"retry-after"]) >= 1
        order = []
        for number, task in enumerate(served):
            task.add_done_callback(lambda _, number=number: order.append(number))
        assert [reply.status for reply in await asyncio.gather(*served)] == [200, 200, 200]
        await asyncio.sleep(0)
        assert order == [0, 1, 2]
        await eventually(lambda: gateway.under_way == 0)
        assert await waiting_in(gateway.client) == 0
        assert engine.requests_finished == 3


async def test_a_request_without_a_slot_in_time_is_rejected_with_a_retry_time(engine):
    brief = [{"name": "default", "max_wait_s": 0.1}]
    async with running_gateway([worker_for(engine, slots=1)], slo_classes=brief) as gateway:
        engine.inject("slow", factor=200.0)
        first = await sent(gateway, "first", waiting=0)
        late = await gateway.chat("late")
        assert rejection(late) == (503, "queue_timeout")
        assert 1 <= int(dict(late.headers)[b"retry-after"]) <= 600
        timeline = await gateway.timeline(dict(late.headers)[b"x-request-id"].decode())
        assert (timeline["outcome"], timeline["why"]) == ("rejected", "queue_timeout")
        assert not timeline.get("attempts")
        engine.clear_faults()
        assert (await first).status == 200
        assert engine.requests_finished == 1


async def test_who_leaves_the_line_makes_room_in_it_and_never_reaches_the_engine(engine):
    async with running_gateway(
        [worker_for(engine, slots=1)], queue={"max_waiting": 1}, slo_classes=PATIENT
    ) as gateway:
        first = await sent(gateway, "first", waiting=0)
        leaver = await sent(gateway, "leaver", waiting=1)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        third = await sent(gateway, "third", waiting=1)
        assert [(await task).status for task in (first, third)] == [200, 200]
        assert engine.requests_finished == 2
        await eventually(lambda: gateway.under_way == 0)


async def test_many_requests_are_all_served_or_rejected_and_never_exceeds_the_slots(engine):
    most = 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, gateway.under_way)
            await asyncio.sleep(0.001)

    brief = [{"name": "default", "max_wait_s": 0.3}]
    async with running_gateway(
        [worker_for(engine, slots=4)], queue={"max_waiting": 10}, slo_classes=brief
    ) as gateway:
        watching = asyncio.create_task(watch())
        replies = await asyncio.gather(*(gateway.chat(f"request {n}", max_tokens=8) for n in range(60)))
        watching.cancel()
        reported = [reply.status if reply.status == 200 else rejection(reply) for reply in replies]
        assert set(reported) <= {200, (503, "queue_full"), (503, "queue_timeout")}
        assert reported.count(200) >= 4
        assert reported.count((503, "queue_full")) >= 1
        assert all(dict(reply.headers)[b"retry-after"] for reply in replies if reply.status != 200)
        assert most == 4
        assert engine.requests_finished == reported.count(200)
        await eventually(lambda: gateway.under_way == 0)
        assert await waiting_in(gateway.client) == 0
