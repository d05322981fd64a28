"""A gateway's timelines are read once each, over pages, on our clock; open ones as often as one looks."""

import asyncio

import pytest

from phasewise.clients import timeline_feed
from phasewise.clients.http_client import HttpClient
from phasewise.clients.timeline_feed import Missed, TimelineFeed
from phasewise.core.errors import UpstreamError
from phasewise.core.timeline import Outcome
from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import ADMIN, eventually, request_id_of, running_gateway


async def ask(gateway, count):
    """Send requests and wait until their timelines are kept."""
    ids = [request_id_of(await gateway.chat(f"question {index}")) for index in range(count)]
    for request_id in ids:
        await gateway.timeline(request_id)
    return ids


async def test_what_came_before_is_skipped_and_the_rest_read_once(monkeypatch):
    monkeypatch.setattr(timeline_feed, "PAGE_TIMELINES", 2)
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        await ask(gateway, 3)
        feed = TimelineFeed(gateway.client, ADMIN)
        await feed.skip()
        ids = await ask(gateway, 5)
        assert [timeline.request_id for timeline in await feed.read()] == ids
        assert await feed.read() == ()


async def test_timelines_of_a_host_whose_clock_is_ahead_are_put_on_ours():
    ahead_s = 3600.0
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        here = TimelineFeed(gateway.client, ADMIN)
        there = TimelineFeed(gateway.client, ADMIN, clock=lambda: timeline_feed.time.time() - ahead_s)
        await here.skip()
        await there.skip()
        await ask(gateway, 1)
        (mine,), (shifted,) = await here.read(), await there.read()
    assert mine.started_unix_s - shifted.started_unix_s == pytest.approx(ahead_s, abs=1.0)


async def test_open_requests_are_read_as_they_stand_and_on_our_clock():
    ahead_s = 3600.0
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        engine.inject("slow", factor=20.0)
        asking = asyncio.create_task(gateway.chat(stream=True, max_tokens=200))
        await eventually(lambda: engine.engine.running == 1)
        (mine,) = await TimelineFeed(gateway.client, ADMIN).read_open()
        there = TimelineFeed(gateway.client, ADMIN, clock=lambda: timeline_feed.time.time() - ahead_s)
        (shifted,) = await there.read_open()
        asking.cancel()
    assert (mine.outcome, mine.attempts[0].worker.name) == (Outcome.UNFINISHED, "w0")
    assert shifted.ended_s > mine.ended_s
    assert mine.started_unix_s - shifted.started_unix_s == pytest.approx(ahead_s, abs=1.0)


async def test_what_was_fetched_in_time_is_read_later_and_what_was_not_is_counted():
    async with running_engines(1) as (engine,), running_gateway([engine], keep_timelines=2) as gateway:
        feed = TimelineFeed(gateway.client, ADMIN)
        await feed.skip()
        fetched = await ask(gateway, 2)
        await feed.fetch()
        last = [request_id_of(await gateway.chat()) for _ in range(5)][-2:]
        await gateway.timeline(last[-1])
        assert [timeline.request_id for timeline in await feed.read()] == [*fetched, *last]
    assert feed.missed == Missed(dropped=3)


async def test_more_than_can_be_held_is_let_go_and_counted(monkeypatch):
    monkeypatch.setattr(timeline_feed, "MOST_HELD", 2)
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        feed = TimelineFeed(gateway.client, ADMIN)
        await feed.skip()
        ids = await ask(gateway, 3)
        assert [timeline.request_id for timeline in await feed.read()] == ids[1:]
    assert feed.missed == Missed(dropped=1)


async def test_open_requests_beyond_those_read_are_counted(monkeypatch):
    monkeypatch.setattr(timeline_feed, "OPEN_TIMELINES", 1)
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        engine.inject("slow", factor=20.0)
        asking = [asyncio.create_task(gateway.chat(stream=True, max_tokens=200)) for _ in range(3)]
        await eventually(lambda: engine.engine.running == 3)
        feed = TimelineFeed(gateway.client, ADMIN)
        assert len(await feed.read_open()) == 1
        for task in asking:
            task.cancel()
    assert feed.missed == Missed(still_open=2)


async def test_a_gateway_that_does_not_report_open_requests_has_none(monkeypatch):
    monkeypatch.setattr(timeline_feed, "OPEN_PATH", "/phasewise/v1/requests/an-id-it-does-not-know")
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        assert await TimelineFeed(gateway.client, ADMIN).read_open() == ()


async def test_a_wrong_key_is_a_sentence_with_a_hint():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        client = HttpClient(gateway.url)
        with pytest.raises(UpstreamError, match="answered 401") as caught:
            await TimelineFeed(client, [(b"authorization", b"Bearer wrong")]).skip()
        with pytest.raises(UpstreamError, match="answered 401"):
            await TimelineFeed(client, [(b"authorization", b"Bearer wrong")]).read_open()
        client.close()
    assert caught.value.hint
