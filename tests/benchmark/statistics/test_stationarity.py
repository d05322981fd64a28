from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.statistics.stationarity import WarmUp, later, warm_up

REPEATS = 100


def latencies(rng: np.random.Generator, count: int, *, rho: float = 0.3, sigma: float = 0.5) -> np.ndarray:
    """Lognormal readings of which neighbours are alike."""
    noise = rng.standard_normal(count + 30)
    for i in range(1, count + 30):
        noise[i] = rho * noise[i - 1] + (1 - rho**2) ** 0.5 * noise[i]
    return np.exp(sigma * noise[30:])


def repeated(count: int, shape: np.ndarray, *, rho: float = 0.3) -> list[WarmUp]:
    rng = np.random.default_rng(11)
    return [warm_up((latencies(rng, count, rho=rho) * shape).tolist()) for _ in range(REPEATS)]


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("count", [100, 400])
def test_a_steady_run_keeps_nearly_all_and_is_settled(count, rho):
    found = repeated(count, np.ones(count), rho=rho)
    assert np.median([each.cut / count for each in found]) <= 0.05
    assert np.mean([each.cut / count for each in found]) <= 0.10
    assert np.mean([each.settled for each in found]) >= 0.90


@pytest.mark.parametrize("factor", [0.3, 3.0])
@pytest.mark.parametrize("count", [100, 200, 400])
def test_a_warm_up_of_a_fifth_is_cut_and_the_rest_is_settled(count, factor):
    shape = np.where(np.arange(count) < count / 5, factor, 1.0)
    found = repeated(count, shape)
    assert np.median([each.cut / count for each in found]) == pytest.approx(0.2, abs=0.06)
    assert np.mean([each.settled for each in found]) >= 0.85


@pytest.mark.parametrize("count", [200, 400])
def test_a_queue_that_grows_never_settles(count):
    found = repeated(count, 1 + 9 * np.arange(count) / count)
    assert np.mean([not each.settled for each in found]) >= 0.95


def test_one_stalled_request_is_no_warm_up():
    values = latencies(np.random.default_rng(3), 200)
    steady = warm_up(values.tolist())
    values[7] *= 1000
    assert warm_up(values.tolist()).cut <= steady.cut + 10


def test_under_forty_readings_nothing_is_judged():
    growing = [float(value) for value in range(39)]
    assert warm_up(growing) == WarmUp(cut=0, settled=True, judged=False)
    assert warm_up([*growing, 39.0]).judged


def test_readings_all_alike_are_settled_at_once():
    assert warm_up([1.0] * 60) == WarmUp(cut=0, settled=True, judged=True)


def test_a_clean_step_is_cut_where_it_lies():
    assert warm_up([9.0] * 20 + [1.0] * 80) == WarmUp(cut=20, settled=True, judged=True)


@given(st.lists(st.floats(0.001, 1e4), min_size=40, max_size=150))
def test_at_most_half_is_cut_and_only_the_order_of_readings_matters(values):
    found = warm_up(values)
    assert 0 <= found.cut <= len(values) / 2 + 2
    assert warm_up([8 * value for value in values]) == found


def test_of_two_series_the_later_cut_counts_and_both_must_settle():
    settled, drifting = WarmUp(10, True, True), WarmUp(5, False, True)
    assert later(settled, drifting) == WarmUp(10, False, True)
    assert later(settled, WarmUp(25, True, True)) == WarmUp(25, True, True)
    assert not later(settled, WarmUp(0, True, False)).judged
