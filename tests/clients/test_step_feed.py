from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan

import orjson
import pytest
from phasewise_engine_plugin import server
from phasewise_engine_plugin.ring import FinishedRequest as RecordedRequest
from phasewise_engine_plugin.ring import StepRing, Transfer
from phasewise_engine_plugin.server import Address, StepsServer

from phasewise.clients import step_feed
from phasewise.clients.step_feed import StepFeed, default_steps_url, parse_steps
from phasewise.core.errors import EngineUnreachable, UpstreamError
from phasewise.core.steps import KvTransfer

HEADER = {
    "v": 1,
    "recorder": "0.1",
    "engine": "vllm 0.32.0",
    "boot": "b0",
    "pid": 1,
    "now_unix_s": 1000.0,
    "oldest": 0,
    "next": 1,
    "details": True,
}


def record_a_transfer(ring: StepRing, seconds: float, moved_bytes: int) -> None:
    ring.append((1000.0, 0, 1, 0, 0, 1, 1, 1, 0, 0.25, 0, 1, (), (Transfer(seconds, moved_bytes),)))


def record_steps(ring: StepRing, count: int, finished: tuple[RecordedRequest, ...] = ()) -> None:
    for index in range(count):
        ring.append((1000.0 + index, 0, index, 7, 1, 2, 2, 3, 0, 0.25, 0, 1, finished, ()))


@contextmanager
def recorder(ring: StepRing, port: int = 0) -> Iterator[tuple[StepsServer, str]]:
    steps = StepsServer(ring, "vllm 0.32.0", True, Address("127.0.0.1", port))
    assert steps.start()
    try:
        yield steps, f"http://127.0.0.1:{steps.address.port}"
    finally:
        steps.stop()


async def test_steps_arrive_once_and_in_order(monkeypatch):
    monkeypatch.setattr(step_feed, "PAGE_STEPS", 4)
    ring = StepRing(64)
    record_steps(ring, 10)
    with recorder(ring) as (steps, url):
        feed = StepFeed(f"{url}/steps")
        first = await feed.poll()
        record_steps(ring, 3)
        second = await feed.poll()
        feed.close()
    assert [step.seq for step in first.steps] == list(range(10))
    assert [step.seq for step in second.steps] == [10, 11, 12]
    assert first.boot == second.boot == steps.boot
    assert (first.dropped, second.dropped, second.restarted) == (0, 0, False)
    assert first.steps[0].prompt_tokens == 7
    assert first.steps[0].ended_unix_s == 1000.0


async def test_an_idle_engine_gives_an_empty_batch():
    with recorder(StepRing(8)) as (_, url):
        feed = StepFeed(url)
        for _ in range(2):
            batch = await feed.poll()
            assert (batch.steps, batch.dropped, batch.next_seq) == ((), 0, 0)
        feed.close()


async def test_steps_overwritten_between_polls_are_counted():
    ring = StepRing(8)
    record_steps(ring, 20)
    with recorder(ring) as (_, url):
        feed = StepFeed(url)
        first = await feed.poll()
        record_steps(ring, 30)
        second = await feed.poll()
        feed.close()
    assert first.dropped == 0, "what happened before the first poll was not lost to us"
    assert second.dropped == 22
    assert [step.seq for step in second.steps] == list(range(42, 50))


async def test_a_restarted_engine_is_read_from_its_beginning():
    ring = StepRing(64)
    record_steps(ring, 10)
    with recorder(ring) as (steps, url):
        feed = StepFeed(url)
        await feed.poll()
        port = steps.address.port
    fresh = StepRing(64)
    record_steps(fresh, 3)
    feed._client.close()
    with recorder(fresh, port) as (steps, _):
        batch = await feed.poll()
        feed.close()
    assert batch.restarted
    assert batch.boot == steps.boot
    assert [step.seq for step in batch.steps] == [0, 1, 2]
    assert batch.dropped == 0


async def test_a_clock_that_differs_by_more_than_the_round_trip_shifts_the_steps():
    ring = StepRing(8)
    record_steps(ring, 1)
    with recorder(ring) as (_, url):
        feed = StepFeed(url, clock=lambda: time.time() - 60.0)
        batch = await feed.poll()
        feed.close()
    assert batch.clock_shift_s == pytest.approx(60.0, abs=1.0)
    assert batch.steps[0].ended_unix_s == pytest.approx(940.0, abs=1.0)


async def test_a_difference_within_the_round_trip_is_no_shift():
    readings = iter([10_000_000_000.0, 0.0])
    ring = StepRing(8)
    record_steps(ring, 1)
    with recorder(ring) as (_, url):
        feed = StepFeed(url, clock=lambda: -next(readings) + 10_000_000_000.0)
        batch = await feed.poll()
        feed.close()
    assert batch.clock_shift_s == 0.0
    assert batch.steps[0].ended_unix_s == 1000.0


def count_lines(monkeypatch):
    """How many steps recorders have written out, whoever asked."""
    written = []
    write = server.step_line
    monkeypatch.setattr(server, "step_line", lambda seq, step: written.append(seq) or write(seq, step))
    return written


async def test_a_reader_that_begins_near_now_makes_the_engine_write_only_what_is_new(monkeypatch):
    monkeypatch.setattr(step_feed, "PAGE_STEPS", 4)
    written = count_lines(monkeypatch)
    ring = StepRing(64)
    record_steps(ring, 20)
    with recorder(ring) as (_, url):
        feed = StepFeed(url, since_unix_s=1010.0)
        first = await feed.poll()
        record_steps(ring, 3)
        second = await feed.poll()
        feed.close()
    assert [step.seq for step in first.steps] == list(range(10, 20))
    assert (first.dropped, first.next_seq) == (0, 20)
    assert [step.seq for step in second.steps] == [20, 21, 22], "only the first poll begins at a time"
    assert written == list(range(10, 23))


async def test_the_time_to_begin_at_is_on_our_clock():
    ring = StepRing(64)
    record_steps(ring, 20)
    with recorder(ring) as (_, url):
        feed = StepFeed(url, clock=lambda: time.time() - 60.0, since_unix_s=1010.5 - 60.0)
        batch = await feed.poll()
        feed.close()
    assert [step.seq for step in batch.steps] == list(range(11, 20))
    assert batch.steps[0].ended_unix_s == pytest.approx(951.0, abs=0.4)


async def test_a_reader_that_begins_after_the_last_step_gets_the_next_one():
    ring = StepRing(8)
    record_steps(ring, 20)
    with recorder(ring) as (_, url):
        feed = StepFeed(url, since_unix_s=5000.0)
        first = await feed.poll()
        record_steps(ring, 1)
        second = await feed.poll()
        feed.close()
    assert (first.steps, first.dropped, first.next_seq) == ((), 0, 20)
    assert ([step.seq for step in second.steps], second.dropped) == ([20], 0)


async def test_a_phase_that_was_never_reached_is_not_a_number():
    ring = StepRing(8)
    aborted = RecordedRequest("chatcmpl-a", "abort", 5, 0, 0, 0.1, None, None, 0.2, 0)
    record_steps(ring, 1, (aborted,))
    with recorder(ring) as (_, url):
        feed = StepFeed(url)
        (ended,) = (await feed.poll()).steps[0].finished
        feed.close()
    assert (ended.request_id, ended.queue_s, ended.e2e_s) == ("chatcmpl-a", 0.1, 0.2)
    assert isnan(ended.prefill_s)
    assert isnan(ended.decode_s)


async def test_kv_that_came_in_is_reported_with_its_step_and_only_there():
    ring = StepRing(8)
    record_steps(ring, 1)
    record_a_transfer(ring, 0.0123456789, 35_400_000)
    with recorder(ring) as (_, url):
        feed = StepFeed(url)
        batch = await feed.poll()
        feed.close()
    assert [step.transfers for step in batch.steps] == [(), (KvTransfer(0.012346, 35_400_000),)]


async def test_an_engine_without_a_recorder_is_a_sentence_with_a_hint():
    with recorder(StepRing(8)) as (_, url):
        pass
    with pytest.raises(EngineUnreachable, match="phasewise engine install"):
        await StepFeed(url).poll()


async def test_another_server_at_the_address_is_named_as_such():
    with recorder(StepRing(8)) as (_, url):
        feed = StepFeed(f"{url}/elsewhere")
        with pytest.raises(UpstreamError, match="answered 404"):
            await feed.poll()
        feed.close()


def test_an_unknown_version_is_rejected_with_a_hint():
    with pytest.raises(UpstreamError, match=r"version 2 are not supported, only 1.*engine install"):
        parse_steps(orjson.dumps({**HEADER, "v": 2}))


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"v":1}', b"[1]", b'"text"'])
def test_what_is_no_step_record_is_rejected(body):
    with pytest.raises(UpstreamError, match="steps cannot be read"):
        parse_steps(body)


@pytest.mark.parametrize(
    ("engine_url", "steps_url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:18000"),
        ("http://gpu1:8000/v1", "http://gpu1:18000"),
        ("http://gpu1", "http://gpu1:10080"),
        ("http://[::1]:8001", "http://[::1]:18001"),
        ("http://127.0.0.1:60000", None),
    ],
)
def test_the_recorder_listens_ten_thousand_above_its_engine(engine_url, steps_url):
    assert default_steps_url(engine_url) == steps_url
