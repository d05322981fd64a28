"""One line to a real Redis, many who ask over it."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager

import pytest

from phasewise.adapters import redis_line
from phasewise.adapters.redis_connection import redis_connections
from phasewise.adapters.redis_line import RedisLine
from phasewise.errors import ConfigError, StoreUnreachable
from tests.redis_server import running_redis

GENEROUS_S = 20.0


@asynccontextmanager
async def line_to(url):
    line = RedisLine(redis_connections(url, "gateway.cache.redis"))
    try:
        yield line
    finally:
        await line.close()


@pytest.fixture
async def line(redis_server):
    async with line_to(redis_server.url) as line:
        yield line


async def echo(line, text):
    assert await line.ask("ECHO", text) == text.encode()


async def test_many_who_ask_at_once_get_each_their_own_reply(line):
    await asyncio.gather(*(echo(line, f"text {number}") for number in range(500)))


async def test_whoever_stops_waiting_takes_nobody_elses_reply(line):
    patience_s = [0, 0.0005, 0.002, GENEROUS_S]

    async def ask(number):
        try:
            async with asyncio.timeout(patience_s[number % 4]):
                await echo(line, f"text {number}")
        except TimeoutError:
            return False
        return True

    answered = await asyncio.gather(*(ask(number) for number in range(400)))
    assert any(answered)
    assert not all(answered)
    await echo(line, "and then")


async def test_commands_sent_together_are_answered_together_with_refusals_among_the_replies(line):
    name = f"t{secrets.token_hex(8)}"
    stored, refused, read = await line.ask_all([("SET", name, "1"), ("LPUSH", name, "x"), ("GET", name)])
    assert (stored, read) == (b"OK", b"1")
    assert isinstance(refused, Exception)
    assert await line.ask_all([]) == []


async def test_what_redis_refuses_fails_only_for_who_asked_it_and_is_told_without_its_words(line):
    async def ask_nonsense():
        with pytest.raises(StoreUnreachable) as caught:
            await line.ask("SECRETLY", "hunter2")
        assert str(caught.value) == "Redis refuses a command (ResponseError)"

    await asyncio.gather(*(ask_nonsense() if number % 3 else echo(line, "well") for number in range(60)))


async def test_replies_larger_than_any_buffer_arrive_whole(line):
    await asyncio.gather(*(echo(line, f"{number}" * 700_000) for number in range(4)))


async def test_a_redis_that_is_held_up_costs_the_askers_own_deadline_and_later_replies_are_right(own_redis):
    async with line_to(own_redis.url) as line:
        await echo(line, "before")
        own_redis.hold_up()
        for number in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await echo(line, f"late {number}")
        own_redis.go_on()
        await asyncio.gather(*(echo(line, f"after {number}") for number in range(20)))


async def test_a_redis_that_says_nothing_for_long_is_called_anew(own_redis, monkeypatch):
    monkeypatch.setattr(redis_line, "SILENT_S", 0.05)
    async with line_to(own_redis.url) as line:
        await echo(line, "before")
        own_redis.hold_up()
        patient = asyncio.create_task(line.ask("PING"))
        await asyncio.sleep(0.1)
        next_one = asyncio.create_task(line.ask("PING"))
        with pytest.raises(StoreUnreachable, match="silent"):
            await patient
        own_redis.go_on()
        assert await next_one == b"PONG"


async def test_a_redis_that_takes_nothing_in_costs_bounded_memory(own_redis, monkeypatch):
    monkeypatch.setattr(redis_line, "MOST_WAITING_BYTES", 100_000)
    async with line_to(own_redis.url) as line:
        await echo(line, "before")
        own_redis.hold_up()
        waiting = [asyncio.create_task(line.ask("ECHO", "x" * 30_000)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnreachable, match="keep up"):
            await line.ask("ECHO", "x" * 30_000)
        own_redis.go_on()
        await asyncio.gather(*waiting)
        await echo(line, "x" * 30_000)


async def test_all_who_wait_are_told_when_redis_dies_and_the_line_is_made_again_when_it_is_back(own_redis):
    async with line_to(own_redis.url) as line:
        await echo(line, "before")
        own_redis.hold_up()
        waiting = [asyncio.create_task(line.ask("PING")) for _ in range(20)]
        await asyncio.sleep(0.01)
        own_redis.kill()
        async with asyncio.timeout(GENEROUS_S):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreUnreachable}
            with pytest.raises(StoreUnreachable, match="ConnectionError"):
                await line.ask("PING")
        own_redis.start()
        await echo(line, "after")


async def test_an_asker_that_gives_up_while_the_line_is_made_does_not_keep_others_from_it(own_redis):
    async with line_to(own_redis.url) as line:
        own_redis.hold_up()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await line.ask("SET", "given-up", "1")
        patient = asyncio.create_task(line.ask("EXISTS", "given-up"))
        own_redis.go_on()
        assert await patient == 0


async def test_closing_tells_those_who_wait_and_leaves_no_task(own_redis):
    async with line_to(own_redis.url) as line:
        await echo(line, "before")
        own_redis.hold_up()
        waiting = asyncio.create_task(line.ask("PING"))
        await asyncio.sleep(0.01)
        await line.close()
        with pytest.raises(StoreUnreachable, match="closed"):
            await waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_wrong_password_is_told_without_it(tmp_path):
    with running_redis(tmp_path, password="hunter2") as server:
        async with line_to(server.url.replace("hunter2", "hunter3")) as line:
            with pytest.raises(StoreUnreachable, match="AuthenticationError") as caught:
                await line.ask("PING")
        assert "hunter" not in str(caught.value)
        async with line_to(server.url) as line:
            await echo(line, "let in")


async def test_what_an_address_says_of_timeouts_and_protocols_changes_nothing(own_redis):
    async with line_to(f"{own_redis.url}?protocol=3&socket_timeout=0.01&max_connections=1&timeout=1") as line:
        await echo(line, "first")
        await asyncio.sleep(0.05)
        assert await line.ask("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"0"]
        clients = await line.ask("CLIENT", "LIST")
        assert clients.count(b"\n") == 1


def test_a_wrong_address_names_the_setting_and_not_itself():
    with pytest.raises(ConfigError, match=r"gateway\.cache\.redis\.url") as caught:
        redis_connections("http://u:hunter2@host", "gateway.cache.redis")
    assert "hunter2" not in str(caught.value)
