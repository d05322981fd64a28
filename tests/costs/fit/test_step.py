"""A step's seconds and the parts they are spent on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.costs.fit.step import CostPart, StepCost, StepWork, decoding, prefilling

COST = StepCost(
    floor_s=10.0,
    knee_tokens=100,
    beyond_knee_s_per_token=1.0,
    attention_s_per_token_pair=0.001,
    kv_read_s_per_token=0.01,
    per_request_s=0.5,
    per_token_s=0.1,
)
counts = st.integers(0, 5000)
works = st.builds(StepWork, counts, counts, counts, counts, counts)


def test_below_the_knee_tokens_cost_little():
    assert COST(prefilling(100)) - COST(prefilling(99)) == pytest.approx(0.1 + 0.001 * 100)


def test_beyond_the_knee_each_token_costs_more():
    assert COST(prefilling(101)) - COST(prefilling(100)) == pytest.approx(1.0 + 0.1 + 0.001 * 101)


def test_streams_cost_their_contexts_and_their_number():
    assert COST(decoding([40, 60])) == pytest.approx(10.0 + 2 * 0.1 + 100 * 0.01 + 2 * 0.5)


@given(works)
def test_the_parts_are_all_there_and_add_up(work):
    parts = COST.parts_s(work)
    assert set(parts) == set(CostPart)
    assert sum(parts.values()) == pytest.approx(COST(work))
