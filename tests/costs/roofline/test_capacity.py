"""Load and price: the arithmetic of requests, and what stops a replica."""

from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.slo import Slo
from phasewise.costs.roofline.capacity import (
    UniformTraffic,
    largest_within,
    mean_within,
    operating_point,
    price_of,
    replicas_for,
)
from tests.costs.deployments import deploy

BIG = deploy("llama-3-70b", gpus=8)
EASY = Slo(ttft_s=10.0, tpot_s=1.0)


def test_a_request_takes_its_prefill_and_its_share_of_steps():
    traffic = UniformTraffic(prompt_tokens=2000, output_tokens=300)
    point = operating_point(BIG, traffic, 64)
    assert point.tpot_s == pytest.approx(point.step_s + 64 * point.prefill_s / 299)
    in_flight = point.requests_per_s * traffic.decode_steps * point.tpot_s
    assert in_flight == pytest.approx(64)


def test_prefill_and_decode_together_fill_the_time():
    traffic = UniformTraffic(2000, 300)
    point = operating_point(BIG, traffic, 64)
    decode_share = point.requests_per_s * traffic.decode_steps * point.step_s / 64
    assert point.prefill_share + decode_share == pytest.approx(1.0)


def test_the_largest_batch_holds_the_targets_and_one_more_does_not():
    slo = Slo(ttft_s=1.0, tpot_s=0.05)
    capacity = largest_within(BIG, UniformTraffic(2000, 300), slo, max_num_seqs=1024)
    assert capacity.limit == "TPOT"
    assert capacity.point.meets(slo)
    assert not operating_point(BIG, UniformTraffic(2000, 300), capacity.point.batch + 1).meets(slo)


def test_what_stops_a_replica_is_named():
    assert largest_within(BIG, UniformTraffic(100, 300), EASY, 8).limit.startswith("cap: 8 run")
    narrow = deploy("llama-3-70b", gpus=4)
    room = narrow.requests_that_fit(9000)
    assert largest_within(narrow, UniformTraffic(1000, 8000), EASY, 1024).limit.startswith(
        f"KV cache: {room} fit"
    )
    assert largest_within(deploy("llama-3-70b", gpus=1), UniformTraffic(100, 300), EASY, 8).limit.startswith(
        "memory"
    )
    assert largest_within(BIG, UniformTraffic(8000, 300), Slo(0.1, 1.0), 8).limit.startswith("TTFT: not even")
    assert largest_within(BIG, UniformTraffic(100, 300), Slo(1.0, 0.001), 8).limit.startswith(
        "TPOT: not even"
    )


@given(st.integers(1, 100_000))
def test_a_mean_batch_leaves_two_spreads_of_room_and_no_more(slots):
    batch = mean_within(slots)
    assert batch + 2 * sqrt(batch) <= slots < batch + 1 + 2 * sqrt(batch + 1)


def test_where_slots_are_the_limit_the_mean_stays_below_them():
    assert largest_within(BIG, UniformTraffic(100, 300), EASY, max_num_seqs=8).point.batch == 4


def test_two_slots_are_too_few_for_requests_that_arrive_at_random():
    capacity = largest_within(BIG, UniformTraffic(100, 300), EASY, max_num_seqs=2)
    assert capacity.point is None
    assert "too few" in capacity.limit


def test_replicas_cover_the_rate():
    point = operating_point(BIG, UniformTraffic(2000, 300), 64)
    assert replicas_for(point.requests_per_s * 2.5, point) == 3
    assert replicas_for(0.001, point) == 1


def test_prices_of_both_phases_add_up_to_the_price_of_a_request():
    traffic = UniformTraffic(2000, 300)
    point = operating_point(BIG, traffic, 64)
    price = price_of(20.0, traffic, point)
    phases = price.per_million_input * 2000 / 1e6 + price.per_million_output * 300 / 1e6
    assert price.per_thousand_requests / 1000 == pytest.approx(phases)


@given(st.integers(1, 8000), st.integers(2, 1000), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_a_larger_batch_serves_more_and_streams_slower(prompt_tokens, output_tokens, batch):
    traffic = UniformTraffic(prompt_tokens, output_tokens)
    smaller, larger = (operating_point(BIG, traffic, size) for size in (batch, batch + 1))
    assert larger.tpot_s > smaller.tpot_s
    assert larger.requests_per_s >= smaller.requests_per_s * (1 - 1e-9)
