"""One suite for both ways of counting limits: in the process, and in a real Redis."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from phasewise.clients.redis_quotas import RedisQuotas
from phasewise.core.ports import Lease, LimitKind, OverLimit
from phasewise.core.request import Limits
from phasewise.gateway.api.quotas import LEASE_S, ProcessQuotas, SharedQuotas

GENEROUS_S = 60.0


@pytest.fixture(params=["process", "redis"])
async def quotas(request):
    if request.param == "process":
        counting = ProcessQuotas()
    else:
        server = request.getfixturevalue("redis_server")
        store = RedisQuotas(server.url, f"t{secrets.token_hex(8)}", LEASE_S)
        counting = SharedQuotas(store, ProcessQuotas(), GENEROUS_S, "reject")
    await counting.start()
    try:
        yield counting
        assert not counting.degraded
    finally:
        await counting.stop()


async def granted(quotas, limits, tokens=1, key_id="k"):
    answer = await quotas.take(key_id, limits, tokens)
    assert isinstance(answer, Lease)
    assert (answer.key_id, answer.tokens) == (key_id, tokens)
    return answer


async def rejected(quotas, limits, tokens=1, key_id="k"):
    answer = await quotas.take(key_id, limits, tokens)
    assert isinstance(answer, OverLimit)
    return answer


async def test_a_minutes_worth_of_requests_passes_at_once_and_not_one_more(quotas):
    # One flows in every 8.6 seconds: at most one while this runs, however busy the machine.
    limits = Limits(requests_per_minute=7)
    answers = await asyncio.gather(*(quotas.take("k", limits, 1) for _ in range(30)))
    assert 7 <= sum(isinstance(answer, Lease) for answer in answers) <= 8
    over = await rejected(quotas, limits)
    assert over.kind is LimitKind.REQUESTS
    assert 0 < over.retry_after_s <= 60 / 7


async def test_requests_pass_again_when_the_retry_time_is_over(quotas):
    limits = Limits(requests_per_minute=120)
    while isinstance(answer := await quotas.take("k", limits, 1), Lease):
        pass
    assert 0 < answer.retry_after_s <= 0.5
    await asyncio.sleep(answer.retry_after_s + 0.01)
    await granted(quotas, limits)


async def test_slots_are_released_when_requests_end(quotas):
    limits = Limits(max_concurrent=2)
    first, second = await granted(quotas, limits), await granted(quotas, limits)
    assert (await rejected(quotas, limits)).kind is LimitKind.CONCURRENCY
    quotas.settle(first, None)
    third = await granted(quotas, limits)
    assert (await rejected(quotas, limits)).kind is LimitKind.CONCURRENCY
    quotas.settle(second, 1)
    quotas.settle(third, 0)
    await granted(quotas, limits)
    await granted(quotas, limits)


async def test_tokens_that_were_not_used_come_back(quotas):
    limits = Limits(tokens_per_minute=1000)
    lease = await granted(quotas, limits, 1000)
    over = await rejected(quotas, limits, 500)
    assert over.kind is LimitKind.TOKENS
    assert 20 < over.retry_after_s <= 30
    quotas.settle(lease, 400)
    await granted(quotas, limits, 500)


async def test_tokens_used_beyond_the_charge_are_a_debt(quotas):
    limits = Limits(tokens_per_minute=1000)
    quotas.settle(await granted(quotas, limits, 10), 3000)
    over = await rejected(quotas, limits, 10)
    assert over.kind is LimitKind.TOKENS
    assert 100 < over.retry_after_s <= 120.6


async def test_tokens_nobody_counted_stay_charged(quotas):
    limits = Limits(tokens_per_minute=1000)
    quotas.settle(await granted(quotas, limits, 1000), None)
    assert (await rejected(quotas, limits, 500)).kind is LimitKind.TOKENS


async def test_a_request_larger_than_the_bucket_passes_when_it_is_full_and_only_then(quotas):
    limits = Limits(tokens_per_minute=100)
    await granted(quotas, limits, 300)
    over = await rejected(quotas, limits, 1)
    assert 110 < over.retry_after_s <= 120.6


async def test_a_rejection_takes_nothing(quotas):
    limits = Limits(requests_per_minute=2, tokens_per_minute=100, max_concurrent=1)
    lease = await granted(quotas, limits, 10)
    for _ in range(20):
        assert (await rejected(quotas, limits, 10)).kind is LimitKind.CONCURRENCY
    quotas.settle(lease, 10)
    await granted(quotas, limits, 90)


async def test_what_holds_a_request_back_longest_is_named(quotas):
    limits = Limits(requests_per_minute=60, tokens_per_minute=100, max_concurrent=1)
    await granted(quotas, limits, 100)
    over = await rejected(quotas, limits, 100)
    assert over.kind is LimitKind.TOKENS
    assert over.retry_after_s > 30


async def test_keys_do_not_share(quotas):
    limits = Limits(requests_per_minute=1, tokens_per_minute=10, max_concurrent=1)
    for key_id in ("a", "b", "c"):
        await granted(quotas, limits, 10, key_id)
    assert (await rejected(quotas, limits, 10, "a")).kind in LimitKind


async def test_limits_far_beyond_any_key_count_too(quotas):
    limits = Limits(requests_per_minute=10**9, tokens_per_minute=10**12, max_concurrent=10**6)
    leases = [await granted(quotas, limits, 10**9) for _ in range(5)]
    for lease in leases:
        quotas.settle(lease, 2 * 10**9)
    await granted(quotas, limits, 10**9)
