"""Our statistics give what scipy gives, where it has the same; it is too large to install for them."""

from __future__ import annotations

from math import atan, sqrt

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phasewise.benchmark.statistics.bootstrap import (
    _tail,
    _within,
    percentile_interval,
    share_interval,
    t_quantile,
    values_needed,
)
from phasewise.benchmark.statistics.comparison import (
    LIKELY,
    Kind,
    Metric,
    Pair,
    Quotient,
    _upper_factor,
    compare,
)
from phasewise.benchmark.statistics.stationarity import TREND_BATCHES, has_trend, ranks

SEEDS = st.integers(0, 2**32)


@given(st.floats(1e-5, 1 - 1e-5), st.integers(1, 300))
def test_quantiles_of_students_t(probability, degrees):
    expected = scipy.stats.t.ppf(probability, degrees)
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(st.floats(0.0, 50.0), st.integers(1, 300))
def test_how_much_of_students_t_is_within_a_bound(bound, degrees):
    expected = 2 * scipy.stats.t.cdf(bound, degrees) - 1
    assert _within(atan(bound / sqrt(degrees)), degrees) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.8, 0.95, 0.9875]))
def test_wilsons_interval_of_a_share(hits, total, confidence):
    hits = min(hits, total)
    found = share_interval(hits, total, confidence)
    expected = scipy.stats.binomtest(hits, total).proportion_ci(confidence, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_percentile_is_bounded_from_as_many_readings_as_its_exact_interval(share):
    def is_bounded(count: int) -> bool:
        readings = np.arange(float(count))
        exact = scipy.stats.quantile_test(readings, q=share, p=share).confidence_interval(0.95)
        return bool(np.isfinite(exact.low) and np.isfinite(exact.high))

    needed = values_needed(share, 0.95)
    assert not is_bounded(needed - 1)
    assert is_bounded(needed)


@settings(max_examples=10)
@given(SEEDS)
def test_the_bootstrap_of_independent_readings(seed):
    """Of 11 readings each is a block of its own."""
    rng = np.random.default_rng(seed)
    readings = np.sort(rng.exponential(size=11))
    found = percentile_interval(readings.tolist(), 0.5, rng, confidence=0.8, resamples=20_000)
    expected = scipy.stats.bootstrap(
        (readings,),
        np.median,
        confidence_level=1 - 2 * _tail(11, 0.8),
        n_resamples=20_000,
        method="percentile",
        rng=rng,
    ).confidence_interval
    # A resample's median is one of the readings, so the ends may differ by one where chance is close.
    places = np.searchsorted(readings, [found.low, expected.low, found.high, expected.high])
    assert abs(places[0] - places[1]) <= 1
    assert abs(places[2] - places[3]) <= 1


@given(st.lists(st.integers(0, 20).map(float), min_size=1, max_size=60))
def test_ranks_with_ties(values):
    assert ranks(values) == pytest.approx(scipy.stats.rankdata(values))


@given(SEEDS, st.floats(0.0, 0.2))
def test_the_trend_of_a_series_is_as_improbable_as_kendalls_exact_test_says(seed, slope):
    count = TREND_BATCHES[1]
    batches = np.random.default_rng(seed).standard_normal(count) + slope * np.arange(count)
    exact = scipy.stats.kendalltau(np.arange(count), batches, method="exact").pvalue
    assume(0.01 < exact < 0.8)
    readings = np.repeat(batches, 5)
    assert has_trend(readings, level=min(1.0, exact * 1.2))
    assert not has_trend(readings, level=exact * 0.8)


def test_the_interval_of_a_rate():
    rates = [10.4, 11.0, 10.7] * 2
    pairs = [Pair({"rate": Quotient(100.0, 10.0)}, {"rate": Quotient(10 * rate, 10.0)}) for rate in rates]
    metric = Metric("rate", "rate", Kind.RATE, higher_is_better=True)
    (found,) = compare(pairs, [metric], np.random.default_rng(1), resamples=20_000)
    expected = scipy.stats.ttest_1samp(rates, 10.0).confidence_interval(0.95)
    assert found.standard_error == pytest.approx(scipy.stats.sem(rates) / np.mean(rates), rel=0.03)
    # Ours is symmetric in the logarithm of the change.
    assert 10 * (1 + found.interval.low) == pytest.approx(expected.low, rel=0.003)
    assert 10 * (1 + found.interval.high) == pytest.approx(expected.high, rel=0.003)


@pytest.mark.parametrize("degrees", [3, 5, 7, 15, 31, 100])
def test_how_much_larger_the_true_spread_may_be(degrees):
    expected = sqrt(degrees / scipy.stats.chi2.ppf(1 - LIKELY, degrees))
    assert _upper_factor(degrees) == pytest.approx(expected, rel=0.015)
