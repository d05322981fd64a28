"""Many flows that share one world, under any order of arrivals, outcomes, deaths and returns of workers."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.many_flows import AGING_S, ManyFlows
from tests.scheduling.worlds import make_split_world, make_world, split_at_random

OFTEN = ("start", "start", "start", "use_a_grant", "use_a_grant", "succeed", "succeed", "fail", "fail")
KV_TRANSFERS = ("prefill", "prefill", "prefill", "begin_answer", "begin_answer")
NOW_AND_THEN = (
    "admit", "serve_stored", "follow", "follow", "look_again", "look_again", "run_out_of_time",
    "fail_a_worker", "leave", "interrupt", "worker_up", "worker_up", "worker_down", "worker_fails",
    "pass_time", "pass_time",
)  # fmt: skip
SIZES = {
    "slots": st.integers(1, 2),
    "capacity": st.integers(0, 8),
    "budget": st.sampled_from([0.0, 2.0, 100.0]),
    "aging_s": st.just(AGING_S),
}
BUSY_DAY = OFTEN * 3 + NOW_AND_THEN
BUSY_DAY_OF_KV_TRANSFERS = BUSY_DAY + KV_TRANSFERS * 3 + ("pair_fails", *["worker_up"] * 6)
FLEETS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)).filter(any)


def events(*names):
    return st.lists(st.tuples(st.sampled_from(names), st.integers(0, 10_000)), max_size=80)


def play(flows, happenings):
    for name, number in happenings:
        getattr(flows, name)(Random(number))  # noqa: S311 - no secret
        flows.check()


@given(sizes=st.fixed_dictionaries(SIZES), happenings=events(*OFTEN, *NOW_AND_THEN))
@settings(max_examples=200, deadline=None)
def test_no_request_is_lost_or_served_twice_and_slots_are_granted_in_order(sizes, happenings):
    flows = ManyFlows(make_world(2, **sizes))
    play(flows, happenings)
    flows.end()


@given(
    fleet=FLEETS,
    sizes=st.fixed_dictionaries(SIZES),
    seed=st.integers(0, 10_000),
    happenings=events(*OFTEN, *KV_TRANSFERS, *NOW_AND_THEN, "pair_fails"),
    goes_well=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_same_holds_where_kv_is_transferred_by_any_rule(fleet, sizes, seed, happenings, goes_well):
    flows = ManyFlows(make_split_world(*fleet, policy=split_at_random(seed), **sizes))
    play(flows, happenings)
    if goes_well:
        flows.finish()
    flows.end()


@pytest.mark.parametrize("seed", range(20))
def test_the_same_holds_over_a_long_and_busy_day(seed):
    dice = Random(seed)  # noqa: S311 - no secret
    flows = ManyFlows(make_world(2, slots=2, capacity=8, aging_s=AGING_S, budget=100.0))
    for _ in range(600):
        getattr(flows, dice.choice(BUSY_DAY))(dice)
        flows.check()
    assert flows.ended > 50
    flows.end()


@pytest.mark.parametrize("seed", range(20))
def test_the_same_holds_over_a_long_and_busy_day_of_kv_transfers(seed):
    dice = Random(seed)  # noqa: S311 - no secret
    flows = ManyFlows(make_split_world(2, 2, slots=4, capacity=8, aging_s=AGING_S, budget=100.0))
    for _ in range(600):
        getattr(flows, dice.choice(BUSY_DAY_OF_KV_TRANSFERS))(dice)
        flows.check()
    assert flows.ended > 50
    assert len(flows.used_tickets) > 10
    flows.end()
