from __future__ import annotations

import numpy as np
import pytest

from phasewise.bench.change_point import find_change


def latencies(rng: np.random.Generator, count: int, *, rho: float, sigma: float = 0.25) -> np.ndarray:
    noise = rng.standard_normal(count + 30)
    for i in range(1, count + 30):
        noise[i] = rho * noise[i - 1] + (1 - rho**2) ** 0.5 * noise[i]
    return np.exp(sigma * noise[30:])


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_a_steady_run_of_like_neighbours_raises_few_alarms(rho):
    rng = np.random.default_rng(21)
    alarms = [find_change(latencies(rng, 200, rho=rho).tolist(), rng, alpha=0.05) for _ in range(60)]
    # 0.05 of 60 is 3; more than 8 would come about once in 200 choices of the seed.
    assert sum(alarm is not None for alarm in alarms) <= 8


@pytest.mark.parametrize("at", [50, 100, 140])
def test_a_shift_of_thirty_percent_is_found_near_where_it_happened(at):
    rng = np.random.default_rng(22)
    found = []
    for _ in range(20):
        values = latencies(rng, 200, rho=0.2)
        values[at:] *= 1.3
        found.append(find_change(values.tolist(), rng))
    changes = [change for change in found if change is not None]
    assert len(changes) >= 16
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


@pytest.mark.parametrize("count", [0, 1, 7, 9])
def test_a_handful_of_readings_has_no_change(count):
    assert find_change([float(value) for value in range(count)], np.random.default_rng(0)) is None


def test_readings_all_alike_have_no_change():
    assert find_change([3.0] * 100, np.random.default_rng(0)) is None
