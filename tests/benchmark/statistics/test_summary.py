from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.statistics.summary import Summary, percentile, readings_needed, summarise

READINGS = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=200)


@given(READINGS)
def test_the_median_is_the_median(values):
    assert percentile(sorted(values), 0.5) == pytest.approx(statistics.median(values))


@given(READINGS)
def test_percentiles_are_ordered_and_within_the_readings(values):
    summary = summarise(values)
    known = [value for value in (summary.p50, summary.p90, summary.p99, summary.max) if value is not None]
    assert known == sorted(known)
    assert min(values) <= known[0]


def test_between_two_readings_is_interpolated():
    assert percentile([float(value) for value in range(11)], 0.95) is None
    assert percentile([float(value) for value in range(21)], 0.95) == 19.0
    assert percentile([0.0, 1.0], 0.5) == 0.5


@pytest.mark.parametrize(("share", "needed"), [(0.5, 1), (0.9, 10), (0.95, 20), (0.99, 100), (1.0, 1)])
def test_a_percentile_needs_enough_readings_to_be_more_than_the_largest(share, needed):
    assert readings_needed(share) == needed
    assert percentile([1.0] * needed, share) == 1.0
    assert percentile([1.0] * (needed - 1), share) is None


def test_what_is_undefined_is_left_out_and_nothing_is_nothing():
    assert summarise([None, 2.0, None]).count == 1
    assert summarise([]) == Summary(0, None, None, None, None, None)
