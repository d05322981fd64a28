"""The script in a real Redis, and what its client says when there is none."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest
import redis.asyncio

from phasewise.clients.redis_quotas import RedisQuotas, Renew, Settle, Take
from phasewise.core.errors import ConfigError, StoreUnreachable
from tests.gateway.harness import eventually
from tests.redis_server import running_redis

CERTIFICATE = Path(__file__).parent / "localhost-for-tests-only.pem"
GENEROUS_S = 60.0
REQUEST_US, TOKENS_US = 10_000_000, 12_000_000


@pytest.fixture
def prefix():
    return f"t{secrets.token_hex(8)}"


@pytest.fixture
async def store(redis_server, prefix):
    store = RedisQuotas(redis_server.url, prefix, lease_s=10.0)
    yield store
    await store.close()


@pytest.fixture
async def plain(redis_server):
    async with redis.asyncio.Redis.from_url(redis_server.url) as client:
        yield client


def take(lease_id="l1", *, requests_us=REQUEST_US, tokens_us=TOKENS_US, slots=3):
    return Take("k", lease_id, requests_us, tokens_us, slots)


async def names(plain, prefix):
    return sorted([name.decode() async for name in plain.scan_iter(f"{prefix}:*")])


async def test_all_that_is_kept_of_a_key_stands_on_one_node_of_a_cluster_and_expires(store, plain, prefix):
    await store.perform([take()], GENEROUS_S)
    kept = await names(plain, prefix)
    assert kept == [f"{prefix}:{{k}}:{name}" for name in ("leases", "requests", "tokens")]
    lives_ms = [await plain.pttl(name) for name in kept]
    assert all(0 < life_ms <= 12_000 for life_ms in lives_ms)


async def test_limits_that_are_not_set_leave_nothing(store, plain, prefix):
    await store.perform([take(requests_us=0, tokens_us=0, slots=0)], GENEROUS_S)
    assert await names(plain, prefix) == []


async def test_a_rejection_changes_nothing(store, plain, prefix):
    await store.perform([take("l1", slots=1)], GENEROUS_S)
    before = [await plain.get(f"{prefix}:{{k}}:{name}") for name in ("requests", "tokens")]
    (waits,) = await store.perform([take("l2", slots=1)], GENEROUS_S)
    assert waits[2] is True
    assert [await plain.get(f"{prefix}:{{k}}:{name}") for name in ("requests", "tokens")] == before
    assert await plain.zcard(f"{prefix}:{{k}}:leases") == 1


async def test_what_is_given_back_is_as_if_it_had_not_been_taken(store, plain, prefix):
    await store.perform([take(), Settle("k", "l1", -REQUEST_US, -TOKENS_US)], GENEROUS_S)
    assert await names(plain, prefix) == []


async def test_a_second_settlement_without_corrections_does_no_harm(store, plain, prefix):
    await store.perform([take("l1"), take("l2")], GENEROUS_S)
    await store.perform([Settle("k", "l1", 0, 0)] * 2, GENEROUS_S)
    assert await plain.zrange(f"{prefix}:{{k}}:leases", 0, -1) == [b"l2"]


async def test_a_lease_that_nobody_renews_is_given_up(redis_server, prefix):
    store = RedisQuotas(redis_server.url, prefix, lease_s=0.05)
    try:
        await store.perform([take("dead", slots=1)], GENEROUS_S)

        async def place_free():
            (waits,) = await store.perform([take("next", slots=1, requests_us=0, tokens_us=0)], GENEROUS_S)
            return not waits[2]

        await eventually(place_free)
    finally:
        await store.close()


async def test_a_renewal_brings_back_what_redis_has_lost(store, plain, prefix):
    await store.perform([Renew("k", ("l1", "l2"))], GENEROUS_S)
    (waits,) = await store.perform([take("l3", slots=2)], GENEROUS_S)
    assert waits[2]
    assert 0 < await plain.pttl(f"{prefix}:{{k}}:leases") <= 10_000


async def test_a_flushed_script_is_loaded_again_and_nothing_is_counted_twice(store, plain, prefix):
    await store.perform([take("l1")], GENEROUS_S)
    await plain.script_flush()
    answers = await store.perform([take("l2"), take("l3"), take("l4")], GENEROUS_S)
    assert [waits[2] for waits in answers] == [False, False, True]
    assert await plain.zcard(f"{prefix}:{{k}}:leases") == 3


async def test_an_error_of_redis_is_reported_without_its_words(store, plain, prefix):
    await plain.set(f"{prefix}:{{k}}:leases", "not a set")
    with pytest.raises(StoreUnreachable) as caught:
        await store.perform([take()], GENEROUS_S)
    assert str(caught.value) == "Redis does not answer (ResponseError)"


async def test_a_redis_that_is_held_up_costs_the_deadline_and_late_answers_are_not_mixed_up(own_redis):
    store = RedisQuotas(own_redis.url, "t", lease_s=10.0)
    try:
        await store.perform([take("l1", slots=1)], GENEROUS_S)
        own_redis.hold_up()
        with pytest.raises(StoreUnreachable, match="TimeoutError"):
            await store.perform([take("l2", slots=1)], 0.1)
        own_redis.go_on()
        answers = await store.perform([Settle("k", "l1", 0, 0), take("l3", slots=2)], GENEROUS_S)
        assert answers[0] is None
        assert answers[1][2] is False
    finally:
        await store.close()


async def test_a_redis_that_was_killed_is_used_again_once_it_is_back(own_redis):
    store = RedisQuotas(own_redis.url, "t", lease_s=10.0)
    try:
        await store.perform([take("l1", slots=1)], GENEROUS_S)
        own_redis.kill()
        for _ in range(3):
            with pytest.raises(StoreUnreachable):
                await store.perform([take("l2", slots=1)], GENEROUS_S)
        own_redis.start()
        (waits,) = await store.perform([take("l3", slots=1)], GENEROUS_S)
        assert waits[2] is False
    finally:
        await store.close()


async def test_redis_is_spoken_to_over_tls_if_its_certificate_is_trusted(tmp_path):
    with running_redis(tmp_path, password="hunter2", certificate=CERTIFICATE) as server:
        trusting = RedisQuotas(server.url, "t", lease_s=10.0)
        doubting = RedisQuotas(server.url.partition("?")[0], "t", lease_s=10.0)
        try:
            (waits,) = await trusting.perform([take()], GENEROUS_S)
            assert waits[2] is False
            with pytest.raises(StoreUnreachable):
                await doubting.perform([take()], GENEROUS_S)
        finally:
            await trusting.close()
            await doubting.close()


@pytest.mark.parametrize(
    "url",
    ["http://u:hunter2@host", "hunter2", "redis://u:hunter2@host:port/0", "redis://:hunter2@h:1/0?db=x", ""],
)
def test_a_wrong_address_is_a_mistake_in_the_configuration_and_is_not_repeated(url):
    with pytest.raises(ConfigError, match=r"gateway\.redis\.url") as caught:
        RedisQuotas(url, "t", lease_s=10.0)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_without_the_package_the_hint_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio.connection", None)
    with pytest.raises(ConfigError, match=r"phasewise\[redis\]"):
        RedisQuotas("redis://127.0.0.1:1/0", "t", lease_s=10.0)
