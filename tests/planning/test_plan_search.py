"""The search finds what trying everything finds, with fewer trials."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.planning.trials import choose, fewest, most_load
from tests.planning.builders import by_formula, make_space, make_traffic, make_trials

LOADS = st.floats(0.2, 25.0)


def by_trying_all(space, attempt, *, disaggregated, most):
    """The smallest number of engines of which any candidate meets the goal."""
    for engines in range(2 if disaggregated else 1, most + 1):
        for cap in space.caps:
            if any(attempt(it).met for it in space.candidates(engines, cap, disaggregated=disaggregated)):
                return engines
    return None


@given(LOADS, LOADS, st.integers(1, 64), st.booleans())
def test_the_search_finds_the_fewest_engines(prefill_load, decode_load, begin, disaggregated):
    space, attempt = make_space(make_trials()), by_formula(prefill_load, decode_load)
    found = fewest(space, attempt, begin, disaggregated=disaggregated)
    wanted = by_trying_all(space, attempt, disaggregated=disaggregated, most=64)
    assert (found and found.candidate.engines) == wanted
    assert found is None or found.met


@given(LOADS, LOADS, st.integers(1, 64))
def test_the_search_asks_few_questions(prefill_load, decode_load, begin):
    asked = count()
    attempt = by_formula(prefill_load, decode_load)
    space = make_space(make_trials())
    fewest(space, lambda it: (next(asked), attempt(it))[1], begin, disaggregated=False)
    # Doubling and halving to 64 and back, at most three chunk sizes each.
    assert next(asked) <= 3 * 2 * 7


@pytest.mark.parametrize("disaggregated", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_search_finds_the_fewest_simulated_engines(seed, disaggregated):
    trials = make_trials(make_traffic(rate=2.5, seed=seed))
    space = make_space(trials)
    found = fewest(space, trials, space.usual_engines, 6, disaggregated=disaggregated)
    assert found is not None
    assert found.candidate.engines == by_trying_all(space, trials, disaggregated=disaggregated, most=6)


def test_a_goal_that_no_fleet_meets_has_no_choice():
    space = make_space(make_trials())
    choice = choose(space, by_formula(100.0, 100.0), most=8)
    assert choice.best is None


def test_a_mixed_fleet_is_chosen_if_both_kinds_need_as_many_engines():
    space = make_space(make_trials())
    choice = choose(space, by_formula(2.0, 2.0))
    assert choice.mixed.candidate.engines == choice.disaggregated.candidate.engines == 4
    assert choice.best is choice.mixed
    apart = choose(space, by_formula(6.0, 3.0))
    assert apart.best is apart.disaggregated


@given(st.floats(0.1, 10.0), st.floats(0.5, 2.0))
def test_the_most_load_is_found_to_the_resolution(most, begin):
    space = make_space(make_trials())
    row = space.candidates(4, 256, disaggregated=True)
    found = most_load(row, 0, lambda load: by_formula(2 * load / most, load / most), begin, 1.02)
    assert found == pytest.approx(most * 1.0, rel=0.02)


def test_next_to_no_load_is_none():
    row = make_space(make_trials()).candidates(4, 256, disaggregated=True)
    assert most_load(row, 0, lambda load: by_formula(1e3 * load, 1e3 * load), 1.0, 1.02) == 0.0
