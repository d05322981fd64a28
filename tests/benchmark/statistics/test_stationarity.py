from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.statistics.stationarity import LevelChange, WarmUp, find_change, later, warm_up

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


def correlated(rng: np.random.Generator, count: int, *, rho: float, sigma: float = 0.25) -> np.ndarray:
    noise = rng.standard_normal(count + 30)
    for i in range(1, count + 30):
        noise[i] = rho * noise[i - 1] + (1 - rho**2) ** 0.5 * noise[i]
    return np.exp(sigma * noise[30:])


@pytest.mark.parametrize("count", [100, 200])
@pytest.mark.parametrize(("rho", "most"), [(0.0, 4), (0.5, 4), (0.8, 5), (0.95, 8)])
def test_a_steady_run_of_like_neighbours_raises_few_alarms(count, rho, most):
    rng = np.random.default_rng(21)
    alarms = [find_change(correlated(rng, count, rho=rho).tolist(), rng) for _ in range(100)]
    # 1 of 100 is expected, 3 where neighbours are most alike; more than this comes once in 200 seeds or so.
    assert sum(alarm is not None for alarm in alarms) <= most


def test_a_slow_queue_beneath_readings_of_their_own_raises_few_alarms():
    rng = np.random.default_rng(25)
    alarms = 0
    for _ in range(60):
        queue = np.log(correlated(rng, 500, rho=0.95, sigma=0.6))
        values = np.exp(queue + 0.8 * rng.standard_normal(500))
        alarms += find_change(values.tolist(), rng) is not None
    # What neighbours show alone, a correlation of 0.3, would raise more than 40.
    assert alarms <= 12


def test_a_long_run_is_judged_by_batches_and_its_jump_found_to_a_few_readings():
    rng = np.random.default_rng(26)
    values = correlated(rng, 5000, rho=0.8)
    assert find_change(values.tolist(), rng) is None
    values[3210:] *= 1.5
    change = find_change(values.tolist(), rng)
    assert change is not None
    assert change.index == pytest.approx(3210, abs=40)


def found_shifts(count: int, at: int, factor: float, repeats: int = 20) -> list[LevelChange]:
    rng = np.random.default_rng(22)
    found = []
    for _ in range(repeats):
        values = correlated(rng, count, rho=0.2)
        values[at:] *= factor
        found.append(find_change(values.tolist(), rng))
    return [change for change in found if change is not None]


@pytest.mark.parametrize("count", [100, 200])
@pytest.mark.parametrize("at", [0.25, 0.5, 0.7])
def test_a_doubling_is_found_nearly_always(count, at):
    changes = found_shifts(count, round(at * count), 2.0)
    assert len(changes) >= 19
    assert np.median([change.index for change in changes]) == pytest.approx(at * count, abs=2)


@pytest.mark.parametrize(("at", "least"), [(50, 10), (100, 16), (140, 12)])
def test_a_shift_of_thirty_percent_is_mostly_found_near_where_it_happened(at, least):
    changes = found_shifts(200, at, 1.3)
    assert len(changes) >= least
    assert np.median([change.index for change in changes]) == pytest.approx(at, abs=10)
    assert np.median([change.after / change.before for change in changes]) == pytest.approx(1.3, abs=0.08)


def test_a_clean_step_is_found_to_the_reading():
    rng = np.random.default_rng(23)
    change = find_change([1.0, 1.1] * 30 + [2.0, 2.2] * 20, rng)
    assert change is not None
    assert (change.index, change.before, change.after) == (60, 1.05, 2.1)


def test_one_stall_is_no_change_of_level():
    rng = np.random.default_rng(24)
    values = correlated(rng, 200, rho=0.0)
    values[80:83] *= 500
    assert find_change(values.tolist(), rng) is None


@pytest.mark.parametrize("count", [0, 1, 9, 19])
def test_a_handful_of_readings_has_no_change(count):
    assert find_change([float(value) for value in range(count)], np.random.default_rng(0)) is None


def test_readings_all_alike_have_no_change():
    assert find_change([3.0] * 100, np.random.default_rng(0)) is None
