"""What outcomes prove: a share that is too large hardly ever looks small, however often one looks."""

from math import exp, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.semantic_match.bound import Proof, Share

shares = st.floats(0.001, 0.3)
confidences = st.floats(0.5, 0.999)


def after_all(outcomes, tolerated=0.01, confidence=0.95, proof=None):
    proof = proof or Proof()
    for right in outcomes:
        proof = proof.after(right, tolerated, confidence)
    return proof


def mean_wealth(proof):
    return sum(map(exp, proof.wealth)) / len(proof.wealth)


def by_chance(chance, streams):
    """How many of these streams may be wrong: three standard deviations above what is expected."""
    return streams * chance + 3 * sqrt(streams * chance * (1 - chance))


def ever_holds(rng, wrong_share, tolerated_shares, confidence):
    proof = Proof()
    for tolerated in tolerated_shares:
        proof = proof.after(rng.random() >= wrong_share * tolerated, tolerated, confidence)
        if proof.holds(confidence):
            return True
    return False


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("budgets", [[0.02] * 1_000, [0.05] * 500, [0.01, 0.1, 0.05] * 250], ids=len)
def test_a_share_of_errors_at_the_budget_is_hardly_ever_proven_to_be_below_it(budgets, confidence):
    rng, streams = Random(7), 300  # noqa: S311
    proven = sum(ever_holds(rng, 1.0, budgets, confidence) for _ in range(streams))
    assert proven <= by_chance(1 - confidence, streams)


def test_a_share_of_errors_far_below_the_budget_is_proven_in_the_end():
    rng = Random(7)  # noqa: S311
    assert sum(ever_holds(rng, 0.1, [0.05] * 1_500, 0.95) for _ in range(100)) > 95


@given(
    tolerated=shares, confidence=confidences, seen=st.lists(st.booleans(), max_size=40), more=st.floats(1, 3)
)
def test_no_outcome_is_expected_to_add_wealth_while_errors_reach_the_budget(
    tolerated, confidence, seen, more
):
    proof = after_all(seen, tolerated, confidence)
    wrong_share = min(1.0, tolerated * more)
    expected = sum(
        chance * mean_wealth(proof.after(right, tolerated, confidence))
        for right, chance in ((True, 1 - wrong_share), (False, wrong_share))
    )
    assert expected <= mean_wealth(proof) * (1 + 1e-9)


@given(tolerated=shares, confidence=confidences)
def test_right_outcomes_prove_after_about_as_many_as_were_said_to_be_missing(tolerated, confidence):
    missing = Proof().missing(tolerated, confidence)
    proof, needed = Proof(), 0
    while not proof.holds(confidence):
        proof, needed = proof.after(True, tolerated, confidence), needed + 1
    assert 0.6 * missing - 1 <= needed <= missing
    assert proof.missing(tolerated, confidence) == 0


def test_one_percent_with_95_percent_confidence_takes_some_400_right_outcomes():
    assert 350 <= Proof().missing(0.01, 0.95) <= 500


def test_where_no_error_is_tolerated_nothing_completes_a_proof():
    assert Proof().missing(0.0, 0.95) is None


@given(right=st.integers(0, 5_000))
def test_however_long_all_was_right_three_wrong_outcomes_end_a_proof(right):
    proof = after_all([False] * 3, proof=after_all([True] * right))
    assert not proof.holds(0.95)
    assert after_all([True] * (right + 1_000) + [False]).holds(0.95)
    assert proof.outcomes == Share(right, 3)


def ever_left_out(rng, share, outcomes, confidence):
    seen = Share()
    for _ in range(outcomes):
        seen = seen.after(rng.random() >= share)
        low, high = seen.interval(confidence)
        if not low <= share <= high:
            return True
    return False


@pytest.mark.parametrize("share", [0.005, 0.05, 0.4])
def test_an_interval_holds_the_true_share_at_all_times_at_once(share):
    rng, streams = Random(11), 100  # noqa: S311
    left_out = sum(ever_left_out(rng, share, 200, 0.9) for _ in range(streams))
    assert left_out <= by_chance(0.1, streams)


@given(right=st.integers(0, 2_000), wrong=st.integers(0, 200), confidence=confidences)
def test_an_interval_holds_the_seen_share_and_moves_with_the_outcomes(right, wrong, confidence):
    assert Share().interval(confidence) == (0.0, 1.0)
    share = Share(right, wrong)
    low, high = share.interval(confidence)
    assert 0 <= low <= high <= 1
    if right + wrong:
        assert low <= wrong / (right + wrong) <= high
    assert share.after(True).interval(confidence)[1] <= high + 1e-6
    assert share.after(False).interval(confidence)[0] >= low - 1e-6
