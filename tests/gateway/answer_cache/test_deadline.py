"""A part of the cache that does not answer costs little, then nothing, and is used again when it is back."""

import asyncio
import contextlib
import logging

import pytest

from phasewise.core.errors import ConfigError, StoreRejected, StoreUnreachable
from phasewise.gateway.answer_cache import deadline as cache_guard
from phasewise.gateway.answer_cache.deadline import FAILURES_TO_OPEN, Breaker
from tests.gateway.harness import eventually

LONG_S = 30.0


class Part:
    """Answers, fails or hangs, as set."""

    def __init__(self):
        self.error = None
        self.hangs = False
        self.prepare_error = None
        self.asked = self.prepared = 0

    async def ask(self):
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return "answer"

    async def prepare(self):
        self.prepared += 1
        if self.prepare_error is not None:
            raise self.prepare_error


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(cache_guard, "TRY_AGAIN_EVERY_S", 0.01)


@contextlib.asynccontextmanager
async def guarded(part, deadline_s=LONG_S):
    breaker = Breaker("the part", StoreUnreachable, part.prepare, part.ask, deadline_s)
    await breaker.start()
    try:
        yield breaker
    finally:
        await breaker.stop()


async def fail(breaker, part, times):
    for _ in range(times):
        with pytest.raises((StoreUnreachable, TimeoutError)):
            await breaker.ask(part.ask, LONG_S)


async def test_what_the_part_answers_is_handed_on():
    part = Part()
    async with guarded(part) as breaker:
        assert await breaker.ask(part.ask, LONG_S) == "answer"
        assert not breaker.is_open


async def test_a_part_that_fails_again_and_again_is_left_alone():
    part = Part()
    async with guarded(part) as breaker:
        part.error, part.prepare_error = StoreUnreachable("gone"), StoreUnreachable("gone")
        await fail(breaker, part, FAILURES_TO_OPEN)
        assert breaker.is_open
        asked = part.asked
        await fail(breaker, part, 5)
        assert part.asked == asked


async def test_one_answer_in_between_resets_the_failures():
    part = Part()
    async with guarded(part) as breaker:
        for _ in range(3):
            part.error = StoreUnreachable("gone")
            await fail(breaker, part, FAILURES_TO_OPEN - 1)
            part.error = None
            await breaker.ask(part.ask, LONG_S)
        assert not breaker.is_open


async def test_late_answers_count_as_failures():
    part = Part()
    async with guarded(part, deadline_s=0.01) as breaker:
        part.hangs = True
        for _ in range(FAILURES_TO_OPEN):
            with pytest.raises(TimeoutError):
                await breaker.ask(part.ask, 0.01)
        assert breaker.is_open


async def test_who_was_given_no_time_is_not_blamed():
    part = Part()
    async with guarded(part) as breaker:
        part.hangs = True
        for _ in range(2 * FAILURES_TO_OPEN):
            with pytest.raises(TimeoutError):
                await breaker.ask(part.ask, 0.001)
        asked = part.asked
        with pytest.raises(TimeoutError):
            await breaker.ask(part.ask, -1.0)
        assert part.asked == asked
        assert not breaker.is_open


async def test_a_part_that_never_answers_in_what_others_leave_it_is_left_alone_in_the_end():
    part = Part()
    async with guarded(part, deadline_s=0.01) as breaker:
        part.hangs = True
        for _ in range(FAILURES_TO_OPEN):
            with pytest.raises(TimeoutError):
                await breaker.ask(part.ask, 0.004)
        assert not breaker.is_open
        for _ in range(2 * FAILURES_TO_OPEN):
            if not breaker.is_open:
                with pytest.raises(TimeoutError):
                    await breaker.ask(part.ask, 0.004)
        assert breaker.is_open


@pytest.mark.parametrize("error", [TimeoutError(), StoreRejected("full")])
async def test_what_is_excused_is_no_reason_to_leave_it_alone(error):
    part = Part()
    async with guarded(part) as breaker:
        part.error = error
        for _ in range(2 * FAILURES_TO_OPEN):
            with pytest.raises(type(error)):
                await breaker.ask(part.ask, LONG_S, (TimeoutError, StoreRejected))
        part.error = None
        assert await breaker.ask(part.ask, LONG_S) == "answer"


async def test_a_client_that_leaves_is_no_failure():
    part = Part()
    async with guarded(part) as breaker:
        part.hangs = True
        for _ in range(2 * FAILURES_TO_OPEN):
            asking = asyncio.create_task(breaker.ask(part.ask, LONG_S))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        assert not breaker.is_open


async def test_an_error_nobody_foresaw_is_a_failure_whose_words_are_kept_back():
    part = Part()
    async with guarded(part) as breaker:
        part.error = KeyError("what somebody asked")
        with pytest.raises(StoreUnreachable) as raised:
            await breaker.ask(part.ask, LONG_S)
        assert "somebody" not in str(raised.value)
        assert raised.value.__suppress_context__


async def test_a_part_that_comes_back_is_made_ready_and_used_again(caplog):
    part = Part()
    async with guarded(part) as breaker:
        part.error = part.prepare_error = StoreUnreachable("gone")
        await fail(breaker, part, FAILURES_TO_OPEN)
        prepared = part.prepared
        await eventually(lambda: part.prepared > prepared + 1)
        assert breaker.is_open
        with caplog.at_level(logging.WARNING, logger="phasewise.gateway"):
            part.error = part.prepare_error = None
            await eventually(lambda: not breaker.is_open)
            assert await breaker.ask(part.ask, LONG_S) == "answer"
            await eventually(lambda: "the part answers again" in caplog.text)


async def test_it_is_not_used_again_while_it_answers_too_slowly():
    part = Part()
    async with guarded(part, deadline_s=0.01) as breaker:
        part.hangs = True
        for _ in range(FAILURES_TO_OPEN):
            with pytest.raises(TimeoutError):
                await breaker.ask(part.ask, 0.01)
        prepared = part.prepared
        await eventually(lambda: part.prepared > prepared + 2)
        assert breaker.is_open


async def test_a_part_that_is_away_at_the_start_may_come_later(caplog):
    part = Part()
    part.prepare_error = StoreUnreachable("gone")
    async with guarded(part) as breaker:
        assert breaker.is_open
        assert "the part does not answer (gone)" in caplog.text
        part.prepare_error = None
        await eventually(lambda: not breaker.is_open)


async def test_what_will_never_work_stops_the_start():
    part = Part()
    part.prepare_error = ConfigError("no such module", hint="install it")
    breaker = Breaker("the part", StoreUnreachable, part.prepare, part.ask, LONG_S)
    with pytest.raises(ConfigError, match="no such module"):
        await breaker.start()
    await breaker.stop()


async def test_what_came_back_and_can_never_work_is_reported_once_and_not_used(caplog):
    part = Part()
    part.prepare_error = StoreUnreachable("gone")
    async with guarded(part) as breaker:
        part.prepare_error = ConfigError("no such module")
        prepared = part.prepared
        await eventually(lambda: part.prepared > prepared + 3)
        assert breaker.is_open
        assert caplog.text.count("no such module") == 1


async def test_a_part_that_comes_and_goes_is_not_reported_each_time(caplog):
    part = Part()
    async with guarded(part) as breaker:
        for _ in range(4):
            part.error = StoreUnreachable("gone")
            await fail(breaker, part, FAILURES_TO_OPEN)
            part.error = None
            await eventually(lambda: not breaker.is_open)
        assert caplog.text.count("does not answer") == caplog.text.count("answers again") == 1


async def test_each_change_is_reported_once(caplog):
    part = Part()
    async with guarded(part) as breaker:
        part.error = part.prepare_error = StoreUnreachable("gone")
        await fail(breaker, part, 3 * FAILURES_TO_OPEN)
        prepared = part.prepared
        await eventually(lambda: part.prepared > prepared + 3)
        assert caplog.text.count("does not answer") == 1
