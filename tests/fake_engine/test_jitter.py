"""Noise on steps: of the promised size, its own on every engine, and none unless asked for."""

from math import log
from random import Random
from statistics import correlation, fmean, pstdev

import pytest

from phasewise.core.errors import ConfigError
from phasewise.costs.fit.step import StepWork
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fake_engine.jitter import Jitter, JitteredCost

DECODE = StepWork(decode_tokens=1, requests=1, kv_read_tokens=10)


def draw_steps(jitter, count, cost=lambda work: 2.0):
    noisy = JitteredCost(cost, jitter, Random(jitter.seed))  # noqa: S311 - no secret
    return [noisy(DECODE) for _ in range(count)]


@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_steps_vary_by_the_spread_and_take_their_cost_on_average(spread):
    steps_s = draw_steps(Jitter(spread, seed=1), 40_000)
    assert fmean(steps_s) == pytest.approx(2.0, rel=4 * spread / 200)
    assert pstdev(map(log, steps_s)) == pytest.approx(spread, rel=0.02)


def test_the_drift_has_its_spread_and_its_memory():
    steps_s = draw_steps(Jitter(seed=1, drift_spread=0.3, drift_steps=20), 200_000)
    logs = [log(step_s) for step_s in steps_s]
    assert fmean(steps_s) == pytest.approx(2.0, rel=0.03)
    assert pstdev(logs) == pytest.approx(0.3, rel=0.05)
    assert correlation(logs[:-20], logs[20:]) == pytest.approx(0.368, abs=0.05)


def test_the_weather_at_the_start_is_as_varied_as_later():
    first_logs = [log(draw_steps(Jitter(seed=seed, drift_spread=0.3), 1)[0]) for seed in range(3000)]
    assert pstdev(first_logs) == pytest.approx(0.3, rel=0.06)


def test_one_seed_gives_one_sequence():
    jitter = Jitter(0.1, seed=7, drift_spread=0.1)
    assert draw_steps(jitter, 5) == draw_steps(jitter, 5)
    assert draw_steps(jitter, 5) != draw_steps(Jitter(0.1, seed=8, drift_spread=0.1), 5)


def test_without_spread_a_step_takes_what_it_costs():
    assert draw_steps(Jitter(seed=3), 3) == [2.0, 2.0, 2.0]
    quiet = FakeEngineConfig(cost=lambda work: 2.0)
    assert [FakeEngine(quiet).step_seconds(DECODE) for _ in range(3)] == [2.0, 2.0, 2.0]


async def test_engines_of_a_fleet_have_noise_of_their_own():
    config = FakeEngineConfig(cost=lambda work: 2.0, jitter=Jitter(0.1, seed=4))
    async with running_engines(3, config) as engines:
        drawn = [[engine.step_seconds(DECODE) for _ in range(5)] for engine in engines]
    assert drawn[0] == draw_steps(Jitter(0.1, seed=4), 5)
    assert len({tuple(steps) for steps in drawn}) == 3


def test_fleets_with_neighbouring_seeds_share_no_noise():
    seeds = {Jitter(0.1, seed=seed).of_engine(index).seed for seed in range(50) for index in range(4)}
    assert len(seeds) == 200


@pytest.mark.parametrize("fields", [{"spread": -0.1}, {"drift_spread": float("nan")}, {"drift_steps": 0}])
def test_noise_that_makes_no_sense_is_rejected(fields):
    with pytest.raises(ConfigError, match="hint: use"):
        Jitter(**fields)
