from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.scheduling.breakers import RetryBudget

EIGHTH = 0.125  # exact in binary, so that bounds are too


@given(
    events=st.lists(st.sampled_from(["request", "failure"]), max_size=300),
    earned=st.sampled_from([0.0, EIGHTH, 0.5, 1.0]),
    burst=st.sampled_from([0.0, 0.5, 1.0, 2.5, 10.0]),
)
def test_in_every_stretch_retries_are_bounded_by_the_burst_and_what_its_requests_earned(
    events, earned, burst
):
    budget = RetryBudget(earned, burst)
    # By how much retries exceed what was earned, in the worst of the stretches that end here.
    worst_excess = 0.0
    for event in events:
        if event == "request":
            budget.earn()
            worst_excess = max(worst_excess - earned, 0.0)
        elif budget.take():
            worst_excess += 1.0
        budget.check_invariants()
        assert worst_excess <= burst


@given(requests=st.integers(0, 2000))
def test_when_everything_fails_retries_stay_the_earned_share_of_the_load(requests):
    budget = RetryBudget(EIGHTH, 10.0)
    retries = 0
    for _ in range(requests):
        budget.earn()
        retries += budget.take()
    assert retries <= 10 + requests * EIGHTH
    assert retries >= min(requests, 9 + requests // 8)


def test_by_default_a_gateways_whole_load_of_broken_streams_is_half_paid_for_and_then_a_fifth():
    budget = RetryBudget()
    paid = 0
    for _ in range(5_000):
        paid += budget.take()
    assert paid == 2_500
    for _ in range(1_000):
        budget.earn()
    assert sum(budget.take() for _ in range(1_000)) == pytest.approx(200, abs=1)


def test_a_full_budget_pays_a_burst_and_not_one_more():
    budget = RetryBudget(EIGHTH, 3.0)
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]


def test_a_spent_budget_pays_again_after_enough_requests():
    budget = RetryBudget(EIGHTH, 1.0)
    assert budget.take()
    for _ in range(7):
        budget.earn()
        assert not budget.take()
    budget.earn()
    assert budget.take()


def test_a_quiet_day_saves_up_no_more_than_a_burst():
    budget = RetryBudget(1.0, 2.0)
    for _ in range(1000):
        budget.earn()
    assert [budget.take() for _ in range(3)] == [True, True, False]


def test_a_burst_of_less_than_one_allows_no_retry():
    budget = RetryBudget(1.0, 0.5)
    budget.earn()
    assert not budget.take()


@pytest.mark.parametrize("tokens", [-0.5, 10.5])
def test_an_overdrawn_or_overfull_budget_is_noticed(tokens):
    budget = RetryBudget(EIGHTH, 10.0)
    budget._tokens = tokens
    with pytest.raises(AssertionError, match="retry budget"):
        budget.check_invariants()
