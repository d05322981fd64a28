from __future__ import annotations

from math import exp
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.statistics import bootstrap
from phasewise.benchmark.statistics.bootstrap import (
    Interval,
    ResampledPool,
    block_length,
    circular_block_draws,
    count_draws,
    percentile_interval,
    pooled_percentile_interval,
    share_interval,
    t_quantile,
    values_needed,
)
from phasewise.core.statistics import quantile

GROUPS = st.lists(st.lists(st.integers(0, 9).map(float), max_size=7), min_size=1, max_size=8).filter(any)


def lognormal(rng: np.random.Generator, count: int, *, rho: float = 0.0) -> list[float]:
    noise = rng.standard_normal(count + 30)
    for i in range(1, count + 30):
        noise[i] = rho * noise[i - 1] + (1 - rho**2) ** 0.5 * noise[i]
    return np.exp(noise[30:]).tolist()


@pytest.mark.parametrize(
    ("count", "share", "rho", "at_least"),
    [
        (20, 0.5, 0.0, 0.92),
        (200, 0.5, 0.0, 0.92),
        (200, 0.9, 0.0, 0.89),
        # No resample reaches beyond the largest reading, so p99 of four hundred covers about 90%, not 95%.
        (400, 0.99, 0.0, 0.85),
        (200, 0.5, 0.5, 0.89),
        (200, 0.9, 0.5, 0.87),
        # Neighbours this alike make 200 requests worth about 22; the interval is honest about most of it.
        (200, 0.5, 0.8, 0.82),
    ],
)
def test_intervals_hold_the_true_percentile_about_as_often_as_they_say(count, share, rho, at_least):
    rng = np.random.default_rng(31)
    true = exp(NormalDist().inv_cdf(share))
    held = 0
    for _ in range(150):
        interval = percentile_interval(lognormal(rng, count, rho=rho), share, rng, resamples=400)
        assert interval is not None
        held += interval.low <= true <= interval.high
    assert held / 150 >= at_least


def test_like_neighbours_widen_the_interval():
    rng = np.random.default_rng(32)
    values = lognormal(rng, 300, rho=0.8)
    in_order = percentile_interval(values, 0.5, rng)
    shuffled = percentile_interval(rng.permutation(values).tolist(), 0.5, rng)
    assert in_order is not None
    assert shuffled is not None
    assert in_order.high - in_order.low > 1.3 * (shuffled.high - shuffled.low)


def test_gaps_of_one_request_do_not_count_as_independent():
    rng = np.random.default_rng(33)
    true, held, naive = 1.0, 0, 0
    for _ in range(100):
        level = np.exp(0.5 * rng.standard_normal(60))
        groups = [(each * np.exp(0.1 * rng.standard_normal(50))).tolist() for each in level]
        pooled = pooled_percentile_interval(groups, 0.5, rng, resamples=300)
        flat = percentile_interval(rng.permutation(np.concatenate(groups)).tolist(), 0.5, rng, resamples=100)
        assert pooled is not None
        assert flat is not None
        held += pooled.low <= true <= pooled.high
        naive += flat.low <= true <= flat.high
    assert held >= 89
    assert naive <= 60


@given(GROUPS, st.floats(0.0, 1.0), st.integers(0, 2**32))
def test_a_weighted_quantile_is_the_quantile_of_the_drawn_readings(groups, share, seed):
    rng = np.random.default_rng(seed)
    draws = count_draws(rng.integers(len(groups), size=(4, len(groups))), len(groups))
    for row, found in zip(draws, ResampledPool(groups).quantiles(draws, share), strict=True):
        drawn = [value for times, group in zip(row, groups, strict=True) for value in group * int(times)]
        assert found == pytest.approx(quantile(drawn, share)) if drawn else np.isnan(found)


def test_slicing_the_work_changes_no_result(monkeypatch):
    rng = np.random.default_rng(34)
    groups = [lognormal(rng, 40) for _ in range(30)]
    draws = circular_block_draws(30, 50, rng)
    whole = ResampledPool(groups).quantiles(draws, 0.9)
    monkeypatch.setattr(bootstrap, "CELLS_AT_ONCE", 100)
    assert (ResampledPool(groups).quantiles(draws, 0.9) == whole).all()


def test_a_large_pool_looks_through_a_small_slice_per_resample():
    groups = [[float(gap) for gap in range(200)] for _ in range(1000)]
    pool = ResampledPool(groups)
    assert pool._width * 10 <= 200_000
    assert pool._counts.size <= 200_000


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_every_resample_draws_as_many_as_there_are(count, seed):
    draws = circular_block_draws(count, 3, np.random.default_rng(seed))
    assert (draws.sum(axis=1) == count).all()


def test_blocks_grow_with_the_run_and_stay_at_least_six():
    assert [block_length(count) for count in (1, 6, 20, 200, 1000)] == [1, 1, 3, 12, 20]


@pytest.mark.parametrize(("share", "needed"), [(0.5, 6), (0.9, 36), (0.1, 36), (0.99, 368)])
def test_a_percentile_has_an_interval_only_where_the_extremes_could_bound_it(share, needed):
    rng = np.random.default_rng(35)
    assert values_needed(share, 0.95) == needed
    assert percentile_interval(lognormal(rng, needed), share, rng, resamples=50) is not None
    assert percentile_interval(lognormal(rng, needed - 1), share, rng, resamples=50) is None


def test_many_gaps_of_few_requests_have_no_interval():
    rng = np.random.default_rng(36)
    groups = [lognormal(rng, 500) for _ in range(5)]
    assert pooled_percentile_interval(groups, 0.99, rng) is None
    assert pooled_percentile_interval([*groups, []], 0.99, rng) is None
    assert pooled_percentile_interval([*groups, lognormal(rng, 500)], 0.99, rng) is not None


def test_an_extreme_has_no_interval():
    with pytest.raises(ValueError, match="extreme"):
        values_needed(1.0, 0.95)


def test_the_same_seed_gives_the_same_interval():
    values = lognormal(np.random.default_rng(37), 100)
    first = percentile_interval(values, 0.5, np.random.default_rng(1))
    assert first == percentile_interval(values, 0.5, np.random.default_rng(1))


@given(st.integers(0, 400), st.integers(1, 400))
def test_a_share_lies_within_its_interval_and_the_interval_within_zero_and_one(hits, total):
    hits = min(hits, total)
    interval = share_interval(hits, total, 0.95)
    assert isinstance(interval, Interval)
    assert 0 <= interval.low <= hits / total <= interval.high <= 1
    assert interval.low < interval.high


def test_a_share_of_nothing_has_no_interval():
    assert share_interval(0, 0, 0.95) is None


@pytest.mark.parametrize(("probability", "degrees"), [(0.975, 0), (0.0, 3), (1.0, 3)])
def test_what_has_no_quantile_is_rejected(probability, degrees):
    with pytest.raises(ValueError, match=r"degree|probability"):
        t_quantile(probability, degrees)
