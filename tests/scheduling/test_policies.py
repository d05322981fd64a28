from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.decision import KEPT_CANDIDATES, Candidate
from phasewise.scheduling.policies import POLICIES, least_outstanding, round_robin
from phasewise.scheduling.prefix_index import PrefixIndex
from tests.builders import make_request, make_worker


def make_candidates(*loads):
    return [
        Candidate(make_worker(f"w{index}"), outstanding_tokens=tokens, outstanding_requests=requests)
        for index, (tokens, requests) in enumerate(loads)
    ]


LOADS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


def chosen_among(*loads):
    return least_outstanding(make_request(), make_candidates(*loads)).chosen.name


def test_the_worker_with_the_fewest_tokens_is_chosen_however_many_requests_it_has():
    assert chosen_among((300, 1), (200, 9), (250, 0)) == "w1"


def test_equal_tokens_go_to_the_fewest_requests():
    assert chosen_among((100, 3), (100, 1), (100, 2)) == "w1"


def test_a_full_tie_goes_to_the_first():
    assert chosen_among((5, 5), (0, 0), (0, 0)) == "w1"


def test_the_only_candidate_is_chosen():
    assert chosen_among((1_000_000, 50)) == "w0"


def test_the_losers_are_kept_cheapest_first_with_the_chosen_one_before_them():
    decision = least_outstanding(make_request(), make_candidates((30, 1), (10, 2), (20, 1), (10, 1)))
    assert [it.worker.name for it in decision.candidates] == ["w3", "w1", "w2", "w0"]
    assert decision.candidates[0].worker is decision.chosen


def test_of_a_large_fleet_the_closest_contenders_are_kept():
    decision = least_outstanding(
        make_request(), make_candidates(*((1_000 - index, 1) for index in range(300)))
    )
    assert [it.outstanding_tokens for it in decision.candidates] == [
        701 + it for it in range(KEPT_CANDIDATES)
    ]
    assert decision.reason == "701 tokens under way, the fewest of 300"


def test_a_decision_says_what_it_was_about():
    decision = least_outstanding(make_request(), make_candidates((30, 1), (10, 2)))
    assert decision.reason == "10 tokens under way, the fewest of 2"


@pytest.mark.parametrize("name", POLICIES)
@given(loads=LOADS)
def test_every_policy_only_looks_and_decides_alike_on_the_same(name, loads):
    candidates = make_candidates(*loads)
    before = list(candidates)
    decision = POLICIES[name](PrefixIndex())(make_request(), candidates)
    assert candidates == before
    # A policy that counts turns is new each time.
    assert POLICIES[name](PrefixIndex())(make_request(), tuple(candidates)) == decision
    assert decision.policy == name
    assert decision.reason


@pytest.mark.parametrize("name", POLICIES)
@given(loads=LOADS)
def test_every_policy_keeps_every_candidate_and_chooses_the_first_of_them(name, loads):
    candidates = make_candidates(*loads)
    decision = POLICIES[name](PrefixIndex())(make_request(), candidates)
    assert decision.chosen is decision.candidates[0].worker
    assert sorted(decision.candidates, key=lambda it: it.worker.name) == sorted(
        candidates, key=lambda it: it.worker.name
    )


@given(loads=LOADS)
def test_no_candidate_costs_less_than_the_chosen_one(loads):
    decision = least_outstanding(make_request(), make_candidates(*loads))
    costs = [(it.outstanding_tokens, it.outstanding_requests) for it in decision.candidates]
    assert costs == sorted(loads)


def test_round_robin_takes_one_after_the_other_whatever_they_have_to_do():
    place, candidates = round_robin(), make_candidates((900, 9), (0, 0), (5, 1))
    chosen = [place(make_request(), candidates).chosen.name for _ in range(5)]
    assert chosen == ["w0", "w1", "w2", "w0", "w1"]


def test_two_gateways_take_turns_of_their_own():
    candidates = make_candidates((0, 0), (0, 0))
    for place in (round_robin(), round_robin()):
        assert place(make_request(), candidates).chosen.name == "w0"
