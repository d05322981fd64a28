"""One connection to a real Redis, shared by many callers."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager

import pytest

from phasewise.clients import redis_connection
from phasewise.clients.redis_connection import SharedConnection, redis_connections
from phasewise.core.errors import ConfigError, StoreUnreachable
from tests.redis_server import running_redis

GENEROUS_S = 60.0


@asynccontextmanager
async def connected_to(url):
    connection = SharedConnection(redis_connections(url, "gateway.cache.redis"))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def connection(redis_server):
    async with connected_to(redis_server.url) as connection:
        yield connection


async def echo(connection, text):
    assert await connection.ask("ECHO", text) == text.encode()


async def test_many_who_ask_at_once_get_each_their_own_reply(connection):
    await asyncio.gather(*(echo(connection, f"text {number}") for number in range(500)))


async def test_whoever_stops_waiting_takes_nobody_elses_reply(connection):
    patience_s = [0, 0.0005, 0.002, GENEROUS_S]

    async def ask(number):
        try:
            async with asyncio.timeout(patience_s[number % 4]):
                await echo(connection, f"text {number}")
        except TimeoutError:
            return False
        return True

    answered = await asyncio.gather(*(ask(number) for number in range(400)))
    assert any(answered)
    assert not all(answered)
    await echo(connection, "and then")


async def test_commands_sent_together_are_answered_together_with_rejections_among_the_replies(connection):
    name = f"t{secrets.token_hex(8)}"
    stored, rejected, read = await connection.ask_all(
        [("SET", name, "1"), ("LPUSH", name, "x"), ("GET", name)]
    )
    assert (stored, read) == (b"OK", b"1")
    assert isinstance(rejected, Exception)
    assert await connection.ask_all([]) == []


async def test_what_redis_rejects_fails_only_for_its_caller_and_is_reported_without_its_words(connection):
    async def ask_nonsense():
        with pytest.raises(StoreUnreachable) as caught:
            await connection.ask("SECRETLY", "hunter2")
        assert str(caught.value) == "Redis rejects a command (ResponseError)"

    await asyncio.gather(
        *(ask_nonsense() if number % 3 else echo(connection, "well") for number in range(60))
    )


async def test_replies_larger_than_any_buffer_arrive_whole(connection):
    await asyncio.gather(*(echo(connection, f"{number}" * 700_000) for number in range(4)))


async def test_a_redis_that_is_held_up_costs_the_askers_own_deadline_and_later_replies_are_right(own_redis):
    async with connected_to(own_redis.url) as connection:
        await echo(connection, "before")
        own_redis.hold_up()
        for number in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await echo(connection, f"late {number}")
        own_redis.go_on()
        await asyncio.gather(*(echo(connection, f"after {number}") for number in range(20)))


async def test_a_redis_that_says_nothing_for_long_is_connected_again(own_redis, monkeypatch):
    monkeypatch.setattr(redis_connection, "SILENT_S", 0.05)
    async with connected_to(own_redis.url) as connection:
        await echo(connection, "before")
        own_redis.hold_up()
        patient = asyncio.create_task(connection.ask("PING"))
        await asyncio.sleep(0.1)
        next_one = asyncio.create_task(connection.ask("PING"))
        with pytest.raises(StoreUnreachable, match="silent"):
            await patient
        own_redis.go_on()
        assert await next_one == b"PONG"


async def test_a_redis_that_takes_nothing_in_costs_bounded_memory(own_redis, monkeypatch):
    monkeypatch.setattr(redis_connection, "MOST_WAITING_BYTES", 100_000)
    async with connected_to(own_redis.url) as connection:
        await echo(connection, "before")
        own_redis.hold_up()
        waiting = [asyncio.create_task(connection.ask("ECHO", "x" * 30_000)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnreachable, match="too slow"):
            await connection.ask("ECHO", "x" * 30_000)
        own_redis.go_on()
        await asyncio.gather(*waiting)
        await echo(connection, "x" * 30_000)


async def test_waiting_commands_fail_when_redis_dies_and_the_connection_is_reopened_when_it_is_back(
    own_redis,
):
    async with connected_to(own_redis.url) as connection:
        await echo(connection, "before")
        own_redis.hold_up()
        waiting = [asyncio.create_task(connection.ask("PING")) for _ in range(20)]
        await asyncio.sleep(0.01)
        own_redis.kill()
        async with asyncio.timeout(GENEROUS_S):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreUnreachable}
            with pytest.raises(StoreUnreachable, match="ConnectionError"):
                await connection.ask("PING")
        own_redis.start()
        await echo(connection, "after")


async def test_an_asker_that_gives_up_while_the_connection_is_made_does_not_keep_others_from_it(own_redis):
    async with connected_to(own_redis.url) as connection:
        own_redis.hold_up()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await connection.ask("SET", "given-up", "1")
        patient = asyncio.create_task(connection.ask("EXISTS", "given-up"))
        own_redis.go_on()
        assert await patient == 0


async def test_closing_fails_waiting_commands_and_leaves_no_task(own_redis):
    async with connected_to(own_redis.url) as connection:
        await echo(connection, "before")
        own_redis.hold_up()
        waiting = asyncio.create_task(connection.ask("PING"))
        await asyncio.sleep(0.01)
        await connection.close()
        with pytest.raises(StoreUnreachable, match="closed"):
            await waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_wrong_password_is_reported_without_it(tmp_path):
    with running_redis(tmp_path, password="hunter2") as server:
        async with connected_to(server.url.replace("hunter2", "hunter3")) as connection:
            with pytest.raises(StoreUnreachable, match="AuthenticationError") as caught:
                await connection.ask("PING")
        assert "hunter" not in str(caught.value)
        async with connected_to(server.url) as connection:
            await echo(connection, "let in")


async def test_what_an_address_says_of_timeouts_and_protocols_changes_nothing(own_redis):
    async with connected_to(
        f"{own_redis.url}?protocol=3&socket_timeout=0.01&max_connections=1&timeout=1"
    ) as connection:
        await echo(connection, "first")
        await asyncio.sleep(0.05)
        assert await connection.ask("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"0"]
        clients = await connection.ask("CLIENT", "LIST")
        assert clients.count(b"\n") == 1


def test_a_wrong_address_names_the_setting_and_not_itself():
    with pytest.raises(ConfigError, match=r"gateway\.cache\.redis\.url") as caught:
        redis_connections("http://u:hunter2@host", "gateway.cache.redis")
    assert "hunter2" not in str(caught.value)
