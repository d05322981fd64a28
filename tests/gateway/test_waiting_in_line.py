"""Requests that wait in the gateway for a worker with a free slot, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import events_of, eventually, request_id_of, running_gateway, worker_for


@pytest.fixture
async def engine():
    async with running_engines(1) as (engine,):
        engine.inject("slow", factor=20.0)
        yield engine


def small(engine, **options):
    """A gateway that gives the engine one request at a time."""
    return running_gateway([worker_for(engine, slots=1)], **options)


def waiting(gateway):
    return len(gateway.app.gateway.pipeline._world.queue)


async def start_chat(gateway, name, until, **fields):
    """A chat that is under way once `until` holds."""
    task = asyncio.create_task(
        gateway.chat(stream=True, headers=[(b"x-request-id", name.encode())], max_tokens=20, **fields)
    )
    await eventually(until)
    return task


async def leave(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_waiting_request_is_served_when_a_slot_is_free_and_the_wait_is_the_gateways(engine):
    async with small(engine) as gateway:
        first = await start_chat(gateway, "first", lambda: gateway.under_way == 1)
        second = await start_chat(gateway, "second", lambda: waiting(gateway) == 1)
        assert gateway.under_way == 1
        replies = [await first, await second]
        assert [events_of(reply.body)[-1] for reply in replies] == ["[DONE]"] * 2
        timelines = [await gateway.timeline(request_id_of(reply)) for reply in replies]
        starts = [timeline["attempts"][0]["from"] for timeline in timelines]
        assert starts[1] > 2 * starts[0]
        assert timelines[1]["in_gateway"][-1] > starts[1] / 2, "its stage queue"
        await eventually(lambda: gateway.under_way == 0)
        assert waiting(gateway) == 0


async def test_who_leaves_while_waiting_is_recorded_as_such_and_makes_way(engine):
    async with small(engine) as gateway:
        first = await start_chat(gateway, "first", lambda: gateway.under_way == 1)
        leaver = await start_chat(gateway, "leaver", lambda: waiting(gateway) == 1)
        last = await start_chat(gateway, "last", lambda: waiting(gateway) == 2)
        await leave(leaver)
        await eventually(lambda: waiting(gateway) == 1)
        assert [(await it).status for it in (first, last)] == [200, 200]
        timeline = await gateway.timeline_of_client("leaver")
        assert (timeline["outcome"], timeline["why"]) == ("cancelled", "client_left")
        assert not timeline.get("attempts")


async def test_who_leaves_while_waiting_after_a_failure_left_and_did_not_fail(engine):
    async with running_gateway([engine]) as gateway:
        first = await start_chat(gateway, "leaver", lambda: gateway.under_way == 1)
        engine.die()
        await eventually(lambda: waiting(gateway) == 1)
        await leave(first)
        timeline = await gateway.timeline_of_client("leaver")
        assert (timeline["outcome"], timeline["why"]) == ("cancelled", "client_left")
        assert {it["outcome"] for it in timeline["attempts"]} == {"failed"}
        assert waiting(gateway) == 0


async def test_the_slot_of_a_client_that_leaves_in_mid_answer_goes_to_the_next(engine):
    async with small(engine) as gateway:
        first = await start_chat(gateway, "first", lambda: gateway.under_way == 1)
        second = await start_chat(gateway, "second", lambda: waiting(gateway) == 1)
        await leave(first)
        assert (await second).status == 200
        line = gateway.app.gateway.pipeline._world.queue
        line.check_invariants()
        assert not line.is_waiting("fake-model")


async def test_the_line_and_the_breakers_show_in_the_metrics(engine):
    async with small(engine) as gateway:
        first = await start_chat(gateway, "first", lambda: gateway.under_way == 1)
        second = await start_chat(gateway, "second", lambda: waiting(gateway) == 1)
        page = (await gateway.fetch("GET", "/metrics")).body.decode()
        assert 'phasewise_waiting_requests{model="fake-model"} 1' in page
        assert 'phasewise_worker_breaker_open{worker="w0",pool="default"} 0' in page
        await first, await second
