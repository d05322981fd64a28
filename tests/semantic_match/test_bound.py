"""The wealth process: no step gains while the claim is true, so a bad cell is hardly ever served."""

from math import exp, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.semantic_match.evidence import START, Bound

BUDGET, CONFIDENCE = 0.01, 0.95
HOPELESS = -20.0
"""A log of wealth from which the way up takes longer than any run here."""
bound = Bound(BUDGET, CONFIDENCE)
shares = st.floats(0.001, 0.3)


def ever_proven(bound, wrong_share, outcomes, rng):
    log_wealth = START
    for _ in range(outcomes):
        log_wealth = bound.after(log_wealth, rng.random() >= wrong_share)
        if bound.proven(log_wealth):
            return True
        if log_wealth < HOPELESS:
            return False
    return False


def after_outcomes(bound, *outcomes, log_wealth=START):
    for right in outcomes:
        log_wealth = bound.after(log_wealth, right)
    return log_wealth


@given(budget=shares, confidence=st.floats(0.5, 0.999), below_cap=st.floats(0, 60), more=st.floats(1, 3))
def test_no_step_is_expected_to_gain_while_the_budget_is_exceeded(budget, confidence, below_cap, more):
    bound = Bound(budget, confidence)
    log_wealth = bound.cap - below_cap
    wrong_share = min(1.0, budget * more)
    expected_factor = sum(
        chance * exp(bound.after(log_wealth, right) - log_wealth)
        for right, chance in ((True, 1 - wrong_share), (False, wrong_share))
    )
    assert expected_factor <= 1 + 1e-9


@given(budget=shares, confidence=st.floats(0.5, 0.999))
def test_right_outcomes_alone_prove_after_the_number_that_was_told(budget, confidence):
    bound = Bound(budget, confidence)
    needed = bound.missing(START)
    almost = after_outcomes(bound, *[True] * (needed - 1))
    assert not bound.proven(almost)
    assert bound.missing(almost) == 1
    assert bound.proven(bound.after(almost, right=True))


def test_one_percent_with_95_percent_confidence_takes_some_400_right_outcomes():
    assert 300 <= bound.missing(START) <= 400


@pytest.mark.parametrize("wrong_share", [BUDGET, 1.5 * BUDGET])
def test_a_cell_that_exceeds_the_budget_is_hardly_ever_served(wrong_share):
    rng = Random(7)  # noqa: S311
    assert sum(ever_proven(bound, wrong_share, 3_000, rng) for _ in range(400)) < 0.05 * 400


def test_a_cell_that_is_seldom_wrong_is_served_in_the_end():
    rng = Random(7)  # noqa: S311
    assert sum(ever_proven(bound, BUDGET / 10, 3_000, rng) for _ in range(100)) > 95


def test_after_any_success_a_first_wrong_outcome_warns_and_a_second_ends_serving():
    long_right = after_outcomes(bound, *[True] * 20_000)
    warned = bound.after(long_right, right=False)
    assert bound.proven(warned)
    assert not bound.proven(bound.after(warned, right=False))


@given(right=st.integers(0, 5_000), wrong=st.integers(0, 50))
def test_the_told_limit_lies_above_the_share_seen_and_falls_with_every_right_outcome(right, wrong):
    seen = wrong / (right + wrong) if right + wrong else 0.0
    limit = bound.most_wrong_share(right, wrong)
    assert seen <= limit <= 1
    assert bound.most_wrong_share(right + 1, wrong) <= limit + 1e-8
    assert bound.most_wrong_share(right, wrong + 1) >= limit - 1e-8


def test_nothing_seen_says_nothing():
    assert bound.most_wrong_share(0, 0) == pytest.approx(1.0)


def test_the_told_limit_holds_however_often_it_is_asked():
    rng = Random(11)  # noqa: S311
    true_share, runs, broken = 0.02, 200, 0
    for _ in range(runs):
        right = wrong = 0
        for turn in range(1, 601):
            if rng.random() < true_share:
                wrong += 1
            else:
                right += 1
            if turn % 20 == 0 and bound.most_wrong_share(right, wrong) < true_share:
                broken += 1
                break
    assert broken <= 0.05 * runs


def test_confidence_costs_outcomes():
    assert Bound(BUDGET, 0.99).missing(START) > Bound(BUDGET, 0.9).missing(START)
    assert bound.threshold == pytest.approx(log(20))
