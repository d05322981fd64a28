"""Counting together: in order, given back when nobody wants it, and going on when Redis fails."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import asynccontextmanager

import pytest

from phasewise.clients.redis_quotas import RedisQuotas, Renew, Settle, Take
from phasewise.core.errors import StoreUnreachable
from phasewise.core.ports import Lease, LimitKind, NotCounted, OverLimit
from phasewise.core.request import Limits
from phasewise.fleet.config import ApiKey, GatewayConfig, RedisConfig
from phasewise.gateway.api import quotas as shared_quotas
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.api.quotas import LEASE_S, ProcessQuotas, SharedQuotas, build_quotas
from phasewise.scheduling.quota_book import MINUTE_US
from tests.gateway.harness import eventually
from tests.redis_server import running_redis

GENEROUS_S = 60.0
PLENTY = Limits(requests_per_minute=600, tokens_per_minute=60_000, max_concurrent=100)


class ScriptedStore:
    """Lets everything through, keeps what it was sent, and waits or fails when a test says so."""

    def __init__(self):
        self.reported = []
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.fails = False

    async def perform(self, operations, deadline_s):
        self.reported.extend(operations)
        await self.open_gate.wait()
        if self.fails:
            raise StoreUnreachable("the store does not answer (a test says so)")
        return [_passed(operation) if isinstance(operation, Take) else None for operation in operations]

    async def close(self):
        pass

    def taken(self):
        return [it for it in self.reported if isinstance(it, Take)]

    def settled(self):
        return [it for it in self.reported if isinstance(it, Settle)]


def _passed(take):
    """The waits of a key that has used nothing."""
    return (take.request_cost_us - MINUTE_US, take.token_cost_us - MINUTE_US, False)


@pytest.fixture
def quick(monkeypatch):
    """Everything that happens in the background happens soon."""
    monkeypatch.setattr(shared_quotas, "TRY_AGAIN_EVERY_S", 0.02)
    monkeypatch.setattr(shared_quotas, "RENEW_EVERY_S", 0.05)


@pytest.fixture
def store():
    return ScriptedStore()


@pytest.fixture
async def quotas(quick, store):
    async with started(store) as quotas:
        yield quotas


@asynccontextmanager
async def started(store, when_down="count_alone", deadline_s=GENEROUS_S):
    """Shared quotas on a store until the block is left."""
    quotas = SharedQuotas(store, ProcessQuotas(), deadline_s, when_down)
    await quotas.start()
    try:
        yield quotas
    finally:
        await quotas.stop()


def on_redis(server, prefix, **options):
    return started(RedisQuotas(server.url, prefix, LEASE_S), **options)


# --- in order ---------------------------------------------------------------------------------------------


async def test_requests_that_come_together_are_counted_in_one_trip(store, quotas):
    trips = []
    perform = store.perform

    async def counted(operations, deadline_s):
        trips.append(len(operations))
        return await perform(operations, deadline_s)

    store.perform = counted
    answers = await asyncio.gather(*(quotas.take("k", PLENTY, 1) for _ in range(20)))
    assert len({lease.lease_id for lease in answers}) == 20
    assert max(trips) == 20


async def test_what_is_under_way_is_renewed_and_what_has_ended_is_not(store, quotas):
    kept, ended = await quotas.take("k", PLENTY, 1), await quotas.take("k", PLENTY, 1)
    without_places = await quotas.take("k", Limits(requests_per_minute=9), 1)

    async def renewed_twice():
        return sum(isinstance(it, Renew) for it in store.reported) >= 2

    await eventually(renewed_twice)
    quotas.settle(ended, 1)
    await eventually(lambda: store.settled() or None)
    store.reported.clear()
    await eventually(renewed_twice)
    assert {it.lease_ids for it in store.reported if isinstance(it, Renew)} == {(kept.lease_id,)}
    assert without_places.shared


async def test_an_end_is_sent_before_a_beginning_that_needs_its_slot(store, quotas):
    lease = await quotas.take("k", PLENTY, 1)
    store.reported.clear()
    quotas.settle(lease, 1)
    await quotas.take("k", PLENTY, 1)
    kinds = [type(it) for it in store.reported if not isinstance(it, Renew)]
    assert kinds == [Settle, Take]


async def test_an_end_that_changes_nothing_is_not_sent(store, quotas):
    limits = Limits(requests_per_minute=100)
    quotas.settle(await quotas.take("k", limits, 5), 50)
    await quotas.take("k", PLENTY, 1)
    assert store.settled() == []


async def test_ends_are_sent_before_the_gateway_stops(quick, store):
    async with started(store) as quotas:
        leases = [await quotas.take("k", PLENTY, 5) for _ in range(600)]
        for lease in leases:
            quotas.settle(lease, 1)
    assert {it.lease_id for it in store.settled()} == {lease.lease_id for lease in leases}


# --- given back -------------------------------------------------------------------------------------------


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_take_cancelled_before_it_is_sent_is_not_sent(store, quotas):
    store.open_gate.clear()
    first = asyncio.create_task(quotas.take("k", PLENTY, 1))
    await eventually(lambda: store.taken() or None)
    await cancelled(asyncio.create_task(quotas.take("k", PLENTY, 1)))
    second = asyncio.create_task(quotas.take("k", PLENTY, 1))
    await asyncio.sleep(0)
    await cancelled(second)
    store.open_gate.set()
    await first
    await quotas.take("k", PLENTY, 1)
    assert len(store.taken()) == 2
    assert store.settled() == []


async def test_a_take_cancelled_on_its_way_is_given_back_in_full(store, quotas):
    store.open_gate.clear()
    task = asyncio.create_task(quotas.take("k", PLENTY, 30))
    (sent,) = await eventually(lambda: store.taken() or None)
    await cancelled(task)
    store.open_gate.set()
    (given_back,) = await eventually(lambda: store.settled() or None)
    assert given_back == Settle("k", sent.lease_id, -sent.request_cost_us, -sent.token_cost_us)
    assert (sent.request_cost_us, sent.token_cost_us) == (100_000, 30_000)


async def test_a_take_cancelled_with_its_answer_at_the_door_is_given_back(store, quotas):
    task = asyncio.create_task(quotas.take("k", PLENTY, 30))
    answered = quotas._counted

    def answered_and_cancelled(*arguments):
        answered(*arguments)
        task.cancel()

    quotas._counted = answered_and_cancelled
    with pytest.raises(asyncio.CancelledError):
        await task
    (given_back,) = await eventually(lambda: store.settled() or None)
    assert given_back.request_correction_us < 0


async def test_a_rejected_take_that_is_cancelled_gives_nothing_back(store, quotas):
    async def reject(operations, deadline_s):
        store.reported.extend(operations)
        await store.open_gate.wait()
        return [(5, 0, False) if isinstance(it, Take) else None for it in operations]

    store.perform = reject
    store.open_gate.clear()
    task = asyncio.create_task(quotas.take("k", PLENTY, 30))
    await eventually(lambda: store.taken() or None)
    await cancelled(task)
    store.open_gate.set()
    assert isinstance(await quotas.take("k", PLENTY, 1), OverLimit)
    assert store.settled() == []


# --- when the store fails ---------------------------------------------------------------------------------


async def test_when_the_store_fails_this_process_holds_the_full_limit_by_itself(store, quotas, caplog):
    limits = Limits(requests_per_minute=3)
    store.fails = True
    answers = [await quotas.take("k", limits, 1) for _ in range(4)]
    assert [isinstance(it, Lease) and not it.shared for it in answers] == [True, True, True, False]
    assert answers[3].kind is LimitKind.REQUESTS
    assert quotas.degraded
    assert caplog.messages == [
        "the store does not answer (a test says so): limits are counted alone until it does"
    ]


async def test_when_the_store_fails_a_strict_gateway_counts_nobody_in(quick, store, caplog):
    async with started(store, "reject") as quotas:
        assert isinstance(await quotas.take("k", PLENTY, 1), Lease)
        store.fails = True
        assert await quotas.take("k", PLENTY, 1) == NotCounted(shared_quotas.TRY_AGAIN_EVERY_S)
        assert caplog.messages == [
            "the store does not answer (a test says so): "
            "requests of keys with limits are rejected until it does"
        ]


async def test_an_answer_that_cannot_be_understood_leaves_nobody_waiting(store, quotas, caplog):
    async def nonsense(operations, deadline_s):
        return [None for _ in operations]

    understood, store.perform = store.perform, nonsense
    lease = await asyncio.wait_for(quotas.take("k", PLENTY, 60), GENEROUS_S)
    assert not lease.shared
    assert "TypeError" in caplog.text
    store.perform = understood
    await eventually(lambda: not quotas.degraded)
    assert (await quotas.take("k", PLENTY, 10)).shared


async def test_an_error_that_nobody_foresaw_does_not_end_the_counting(store, quotas, monkeypatch):
    def fail():
        raise RuntimeError("not foreseen")

    with monkeypatch.context() as patched:
        patched.setattr(quotas, "_renewals", fail)
        await asyncio.sleep(0.2)
    assert (await asyncio.wait_for(quotas.take("k", PLENTY, 60), GENEROUS_S)).shared


async def test_once_it_is_known_to_fail_no_request_waits_for_the_store(quick, store):
    async with started(store) as quotas:
        store.fails = True
        await quotas.take("k", PLENTY, 1)
        store.open_gate.clear()
        store.reported.clear()
        async with asyncio.timeout(GENEROUS_S):
            for _ in range(50):
                assert not (await quotas.take("k", PLENTY, 1)).shared
        assert store.taken() == []
        store.open_gate.set()


async def test_leases_are_settled_where_they_were_taken(store, quotas, caplog):
    limits = Limits(tokens_per_minute=100, max_concurrent=1)
    together = await quotas.take("k", limits, 10)
    store.fails = True
    alone = await quotas.take("k", limits, 10)
    assert (together.shared, alone.shared) == (True, False)
    caplog.set_level(logging.WARNING)
    store.fails = False
    store.reported.clear()
    await eventually(lambda: not quotas.degraded)
    assert Renew("k", (together.lease_id,)) in store.reported
    quotas.settle(alone, 50)
    quotas.settle(together, 60)
    await quotas.take("k", limits, 1)
    corrections = {it.lease_id: it.token_correction_us for it in store.settled()}
    assert corrections.pop(together.lease_id) == 30_000_000
    assert set(corrections.values()) <= {0}
    assert caplog.messages[-1] == "Redis answers again: limits are counted together"


async def test_after_a_failure_slots_are_given_back_again_and_charges_are_not(store, quotas):
    lease = await quotas.take("k", PLENTY, 100)
    store.fails = True
    quotas.settle(lease, 1)
    await eventually(lambda: quotas.degraded)
    store.reported.clear()
    store.fails = False
    await eventually(lambda: not quotas.degraded)
    assert await eventually(lambda: store.settled() or None) == [Settle("k", lease.lease_id, 0, 0)]


async def test_a_store_that_stays_away_does_not_fill_the_memory(monkeypatch, store, quotas):
    leases = [await quotas.take("k", PLENTY, 2) for _ in range(30)]
    quotas._settlements = type(quotas._settlements)(maxlen=10)
    store.fails = True
    await quotas.take("k", PLENTY, 1)
    for lease in leases:
        quotas.settle(lease, 1)
    assert len(quotas._settlements) == 10
    assert not quotas._open


# --- with a real Redis ------------------------------------------------------------------------------------


@pytest.fixture
def prefix():
    return f"t{secrets.token_hex(8)}"


async def test_gateways_that_hammer_one_key_let_exactly_its_limit_pass(redis_server, prefix):
    # One request flows in every 2 seconds; how long it took bounds how many did.
    limits = Limits(requests_per_minute=30)
    started_s = time.monotonic()
    async with (
        on_redis(redis_server, prefix) as first,
        on_redis(redis_server, prefix) as second,
        on_redis(redis_server, prefix) as third,
    ):
        answers = await asyncio.gather(
            *(quotas.take("k", limits, 1) for _ in range(100) for quotas in (first, second, third))
        )
    flowed_in = int((time.monotonic() - started_s) / 2) + 1
    passed = sum(isinstance(answer, Lease) and answer.shared for answer in answers)
    assert 30 <= passed <= 30 + flowed_in


async def test_slots_are_counted_over_all_gateways_and_at_no_time_too_many(redis_server, prefix):
    limits = Limits(max_concurrent=5)
    under_way = most = served = 0

    async def client(quotas):
        nonlocal under_way, most, served
        for _ in range(20):
            answer = await quotas.take("k", limits, 1)
            if isinstance(answer, Lease):
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.001)
                under_way -= 1
                served += 1
                quotas.settle(answer, 1)

    async with on_redis(redis_server, prefix) as first, on_redis(redis_server, prefix) as second:
        await asyncio.gather(*(client(quotas) for quotas in (first, second) for _ in range(10)))
        leases = [await first.take("k", limits, 1) for _ in range(6)]
    assert most == 5
    assert served > 20
    assert [isinstance(lease, Lease) for lease in leases] == [True] * 5 + [False]


async def test_the_slots_of_a_gateway_that_was_killed_come_back_and_those_of_a_living_one_stay(
    quick, redis_server, prefix
):
    limits = Limits(max_concurrent=2)
    lease_s = 1.5
    killed = SharedQuotas(
        RedisQuotas(redis_server.url, prefix, lease_s), ProcessQuotas(), GENEROUS_S, "reject"
    )
    await killed.start()
    async with started(RedisQuotas(redis_server.url, prefix, lease_s)) as living:
        assert isinstance(await killed.take("k", limits, 1), Lease)
        assert isinstance(await living.take("k", limits, 1), Lease)
        assert isinstance(await living.take("k", limits, 1), OverLimit)
        for task in killed._tasks:
            task.cancel()

        async def place_free():
            return isinstance(await living.take("k", limits, 1), Lease)

        await eventually(place_free, timeout_s=60.0)
        await asyncio.sleep(2 * lease_s)
        assert isinstance(await living.take("k", limits, 1), OverLimit)
    await killed._store.close()


async def test_counting_alone_goes_on_where_the_common_count_was(own_redis):
    limits = Limits(requests_per_minute=6, tokens_per_minute=60)
    async with on_redis(own_redis, "t") as first, on_redis(own_redis, "t") as second:
        for quotas, requests in ((first, 3), (second, 2)):
            for _ in range(requests):
                assert (await quotas.take("k", limits, 5)).shared
        own_redis.kill()
        alone = [await quotas.take("k", limits, 5) for quotas in (first, second) for _ in range(6)]
    # The first knew of three requests, the second of five. In ten seconds flows in what one more needs.
    passed = [isinstance(answer, Lease) for answer in alone]
    assert passed[:6].count(True) in {3, 4}
    assert passed[6:].count(True) in {1, 2}


@pytest.mark.parametrize("when_down", ["count_alone", "reject"])
async def test_a_redis_that_is_killed_and_comes_back_is_followed(quick, own_redis, caplog, when_down):
    limits = Limits(max_concurrent=1)
    async with on_redis(own_redis, "t", when_down=when_down) as quotas:
        held = await quotas.take("k", limits, 1)
        own_redis.kill()
        answer = await quotas.take("k", limits, 1)
        assert isinstance(answer, Lease if when_down == "count_alone" else NotCounted)
        own_redis.start()
        await eventually(lambda: not quotas.degraded)
        # Redis has forgotten everything; what is under way was sent to it again.
        assert isinstance(await quotas.take("k", limits, 1), OverLimit)
        quotas.settle(held, 1)
        assert isinstance(await quotas.take("k", limits, 1), Lease)
    assert len(caplog.messages) == 2


async def test_a_redis_that_is_held_up_is_waited_for_once(quick, own_redis):
    async with on_redis(own_redis, "t", deadline_s=0.2) as quotas:
        own_redis.hold_up()
        answers = await asyncio.gather(*(quotas.take("k", PLENTY, 1) for _ in range(20)))
        assert {answer.shared for answer in answers} == {False}
        assert quotas.degraded
        own_redis.go_on()
        await eventually(lambda: not quotas.degraded)
        assert (await quotas.take("k", PLENTY, 1)).shared


async def test_a_gateway_starts_without_redis_and_says_so(quick, own_redis, caplog):
    own_redis.kill()
    async with on_redis(own_redis, "t") as quotas:
        assert quotas.degraded
        assert caplog.messages == [
            "Redis does not answer (ConnectionError): limits are counted alone until it does"
        ]
        own_redis.start()
        await eventually(lambda: not quotas.degraded)


async def test_a_password_is_used_and_never_shown(quick, tmp_path, caplog):
    with running_redis(tmp_path, password="hunter2") as server:
        async with on_redis(server, "t") as quotas:
            assert not quotas.degraded
        wrong = server.url.replace("hunter2", "hunter3")
        async with started(RedisQuotas(wrong, "t", LEASE_S)) as quotas:
            assert quotas.degraded
    assert "AuthenticationError" in caplog.text
    assert "hunter" not in caplog.text


# --- which way of counting --------------------------------------------------------------------------------


def config(redis=None, **limits):
    return GatewayConfig(api_keys=(ApiKey(sha256=key_sha256("one"), **limits),), redis=redis)


@pytest.mark.parametrize(("limits", "reported"), [({}, False), ({"max_concurrent": 1}, True)])
def test_limits_without_redis_are_said_to_be_counted_alone(caplog, limits, reported):
    caplog.set_level(logging.INFO)
    assert isinstance(build_quotas(config(**limits)), ProcessQuotas)
    assert ("gateway.redis" in caplog.text) is reported


def test_with_redis_limits_are_counted_together(caplog):
    caplog.set_level(logging.INFO)
    quotas = build_quotas(config(RedisConfig(url="redis://127.0.0.1:1/0"), max_concurrent=1))
    assert isinstance(quotas, SharedQuotas)
    assert caplog.messages == []
