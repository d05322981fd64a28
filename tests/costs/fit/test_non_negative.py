"""Least squares without negative coefficients, held against trying every set of columns."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.costs.fit.solve import non_negative_least_squares


def squared_error(rows, targets, coefficients):
    return float(np.square(rows @ coefficients - targets).sum())


def least_error_by_force(rows, targets):
    """The least error of all sets of columns whose free solution is not negative."""
    columns = range(rows.shape[1])
    found = [squared_error(rows, targets, np.zeros(rows.shape[1]))]
    for chosen in chain.from_iterable(combinations(columns, size) for size in range(1, len(columns) + 1)):
        solution = np.zeros(rows.shape[1])
        solution[list(chosen)] = np.linalg.lstsq(rows[:, chosen], targets, rcond=None)[0]
        if (solution >= 0).all():
            found.append(squared_error(rows, targets, solution))
    return min(found)


def assert_best(rows, targets):
    solution = non_negative_least_squares(rows, targets)
    assert (solution >= 0).all()
    scale = float(np.square(targets).sum())
    assert squared_error(rows, targets, solution) <= least_error_by_force(rows, targets) + 1e-7 * scale


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.integers(0, 20),
    st.sampled_from((1e-9, 1.0, 1e9)),
    st.booleans(),
)
def test_no_set_of_columns_does_better(seed, columns, more_rows, size, positive):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(columns + more_rows, columns))
    rows = np.abs(rows) if positive else rows
    # As the columns of a step: tokens, pairs of tokens, ones.
    rows = rows * 10.0 ** rng.integers(-4, 5, size=columns)
    assert_best(rows, rng.normal(loc=1.0, size=len(rows)) * size)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.data())
def test_zero_and_collinear_columns_do_no_harm(seed, columns, data):
    rng = np.random.default_rng(seed)
    rows = np.abs(rng.normal(size=(12, columns)))
    zero, copied, onto = (data.draw(st.integers(0, columns - 1)) for _ in range(3))
    rows[:, onto] = 3.0 * rows[:, copied]
    rows[:, zero] = 0.0
    assert_best(rows, rng.normal(loc=1.0, size=12))


def test_what_can_be_met_exactly_is():
    rows = np.array([[1.0, 100.0, 1e6], [1.0, 200.0, 4e6], [1.0, 900.0, 8.1e7], [1.0, 50.0, 1e5]])
    wanted = np.array([0.05, 3e-4, 2e-7])
    assert non_negative_least_squares(rows, rows @ wanted) == pytest.approx(wanted, rel=1e-6)


def test_what_would_be_negative_is_zero():
    rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    floor, slope = non_negative_least_squares(rows, np.array([3.0, 2.0, 1.0]))
    assert (floor, slope) == (pytest.approx(2.0), 0.0)


@pytest.mark.parametrize("targets", [np.zeros(3), np.full(3, -1.0)])
def test_nothing_to_explain_takes_nothing(targets):
    assert non_negative_least_squares(np.ones((3, 2)), targets).tolist() == [0.0, 0.0]
