"""Two parts are learned from readings as they come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.scheduling.online_fit import TwoPartFit

RATES = st.floats(0.0, 10.0)
SIZES = st.lists(st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 100.0)), min_size=1, max_size=40)


def learned(readings):
    fit = TwoPartFit()
    for first, second, reading in readings:
        fit.learn(first, second, reading)
    return fit


def test_both_rates_are_found_from_readings_of_different_shape():
    fit = learned((float(n), n * n / 2.0, 0.002 * n + 1e-6 * n * n / 2.0) for n in (50, 900, 200, 4_000) * 5)
    assert fit.first_rate == pytest.approx(0.002, rel=0.01)
    assert fit.second_rate == pytest.approx(1e-6, rel=0.01)


def test_one_reading_gives_all_to_the_first_part():
    fit = learned([(100.0, 5_000.0, 0.5)])
    assert (fit.first_rate, fit.second_rate) == (pytest.approx(0.005), 0.0)


def test_a_part_that_would_have_to_be_negative_is_nothing():
    fit = learned((1.0, float(n), 0.1 - 0.005 * n) for n in (1, 2, 3, 4) * 5)
    assert fit.second_rate == 0.0
    assert fit.first_rate == pytest.approx(0.087, rel=0.05)


def test_a_wild_reading_among_many_moves_little():
    calm = learned((1.0, float(n), 0.06 + 0.001 * n) for n in range(1, 30))
    before = calm.expected(1.0, 8.0)
    calm.learn(1.0, 8.0, 5.0)
    assert calm.expected(1.0, 8.0) == pytest.approx(before, rel=0.05)


def test_an_engine_that_became_slower_is_believed_after_a_while():
    fit = learned((1.0, float(n % 8 + 1), 0.06 + 0.001 * (n % 8 + 1)) for n in range(300))
    for n in range(900):
        fit.learn(1.0, float(n % 8 + 1), 3 * (0.06 + 0.001 * (n % 8 + 1)))
    assert fit.expected(1.0, 4.0) == pytest.approx(3 * 0.064, rel=0.1)


def test_readings_of_nothing_are_left_out():
    assert learned([(0.0, 0.0, 1.0), (1.0, 1.0, 0.0)]).weight == 0.0


@given(sizes=SIZES, first=RATES, second=RATES)
def test_rates_are_never_negative_and_what_was_seen_is_expected(sizes, first, second):
    readings = [(one, two, one * first + two * second + 1e-3 * one) for one, two in sizes]
    fit = learned(readings)
    assert fit.first_rate >= 0.0
    assert fit.second_rate >= 0.0
    assert fit.expected(*readings[-1][:2]) > 0


@given(sizes=st.lists(st.tuples(RATES, RATES, RATES), max_size=40))
def test_no_reading_whatever_breaks_it(sizes):
    fit = learned(sizes)
    assert fit.first_rate >= 0.0
    assert fit.second_rate >= 0.0
