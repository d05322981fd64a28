from __future__ import annotations

import numpy as np
import pytest

from phasewise.benchmark.statistics.change_point import LevelChange, find_change


def latencies(rng: np.random.Generator, count: int, *, rho: float, sigma: float = 0.25) -> np.ndarray:
    noise = rng.standard_normal(count + 30)
    for i in range(1, count + 30):
        noise[i] = rho * noise[i - 1] + (1 - rho**2) ** 0.5 * noise[i]
    return np.exp(sigma * noise[30:])


@pytest.mark.parametrize("count", [100, 200])
@pytest.mark.parametrize(("rho", "most"), [(0.0, 4), (0.5, 4), (0.8, 5), (0.95, 8)])
def test_a_steady_run_of_like_neighbours_raises_few_alarms(count, rho, most):
    rng = np.random.default_rng(21)
    alarms = [find_change(latencies(rng, count, rho=rho).tolist(), rng) for _ in range(100)]
    # 1 of 100 is expected, 3 where neighbours are most alike; more than this comes once in 200 seeds or so.
    assert sum(alarm is not None for alarm in alarms) <= most


def test_a_slow_queue_beneath_readings_of_their_own_raises_few_alarms():
    rng = np.random.default_rng(25)
    alarms = 0
    for _ in range(60):
        queue = np.log(latencies(rng, 500, rho=0.95, sigma=0.6))
        values = np.exp(queue + 0.8 * rng.standard_normal(500))
        alarms += find_change(values.tolist(), rng) is not None
    # What neighbours show alone, a correlation of 0.3, would raise more than 40.
    assert alarms <= 12


def test_a_long_run_is_judged_by_batches_and_its_jump_found_to_a_few_readings():
    rng = np.random.default_rng(26)
    values = latencies(rng, 5000, rho=0.8)
    assert find_change(values.tolist(), rng) is None
    values[3210:] *= 1.5
    change = find_change(values.tolist(), rng)
    assert change is not None
    assert change.index == pytest.approx(3210, abs=40)


def found_shifts(count: int, at: int, factor: float, repeats: int = 20) -> list[LevelChange]:
    rng = np.random.default_rng(22)
    found = []
    for _ in range(repeats):
        values = latencies(rng, count, rho=0.2)
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
    values = latencies(rng, 200, rho=0.0)
    values[80:83] *= 500
    assert find_change(values.tolist(), rng) is None


@pytest.mark.parametrize("count", [0, 1, 9, 19])
def test_a_handful_of_readings_has_no_change(count):
    assert find_change([float(value) for value in range(count)], np.random.default_rng(0)) is None


def test_readings_all_alike_have_no_change():
    assert find_change([3.0] * 100, np.random.default_rng(0)) is None
