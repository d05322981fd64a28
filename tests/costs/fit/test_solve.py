"""A known cost is found again from noisy steps."""

from math import exp

import numpy as np
import pytest

from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.solve import FittedCost, Readings, fit_cost
from phasewise.costs.fit.step import StepCost, decoding, prefilling
from tests.costs.step_builders import COST, PROMPTS, STREAMS, WORKS, observe


def fit(observations):
    return fit_cost(Readings.of(observations))


def worst_error(cost, works=WORKS):
    return max(abs(cost(work) / COST(work) - 1) for work in works)


def test_without_noise_the_cost_is_found_exactly():
    fitted = fit(observe(COST, np.random.default_rng(0), visits=1, readings=1, jitter=0.0))
    assert fitted.step.knee_tokens == COST.knee_tokens
    assert worst_error(fitted.step) < 1e-3
    assert fitted.front_end_s == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_noise_of_a_tenth_moves_no_prediction_by_as_much(seed):
    """488 readings: the worst of 61 predictions was off by 1 to 5 per cent over 8 seeds."""
    assert worst_error(fit(observe(COST, np.random.default_rng(seed))).step) < 0.1


@pytest.mark.parametrize("seed", range(6))
def test_a_third_of_the_steps_slowed_down_hardly_moves_it(seed):
    """The median of such readings is itself 7% up, a mean 20%. Over 12 seeds the worst was 7 to 19% off."""
    fitted = fit(observe(COST, np.random.default_rng(seed), slowed=0.33))
    errors = [fitted.step(work) / COST(work) - 1 for work in WORKS]
    assert np.median(errors) < 0.13
    assert worst_error(fitted.step) < 0.25


def test_the_knee_is_chosen_by_the_median_too():
    """A relative error forgives predictions that are too long: judged by it, these were up to 40% off."""
    fitted = fit(observe(COST, np.random.default_rng(2), slowed=0.33))
    assert fitted.step.knee_tokens in {64, 96, 128}


def test_no_part_is_negative_where_time_falls_with_work():
    def falling(work):
        return 1.0 / (1 + work.tokens / 100)

    cost = fit(observe(falling, np.random.default_rng(0))).step
    parts = (
        cost.floor_s,
        cost.beyond_knee_s_per_token,
        cost.attention_s_per_token_pair,
        cost.kv_read_s_per_token,
        cost.per_request_s,
        cost.per_token_s,
    )
    assert min(parts) >= 0.0


def test_a_regime_seen_a_thousand_times_does_not_outvote_the_others():
    rng = np.random.default_rng(4)
    steady = observe(lambda work: 2 * COST(work), rng, [STREAMS[0]], visits=1, readings=1000)
    fitted = fit([*observe(COST, rng), *steady])
    assert worst_error(fitted.step, [prefilling(tokens) for tokens in PROMPTS[6:]]) < 0.15


def test_what_a_client_waits_beyond_the_steps_is_told_apart():
    """Prompts in chunks seen from outside, streams step by step. Over 30 seeds 22 to 32 ms were found."""
    rng = np.random.default_rng(5)
    observations = observe(COST, rng, STREAMS)
    for tokens in PROMPTS * 8:
        chunks = tuple(prefilling(min(512, tokens - done), done) for done in range(0, tokens, 512))
        seconds = (sum(map(COST, chunks)) + 0.030) * exp(rng.normal(0, 0.1))
        observations.append(Observation(chunks, seconds, through_front_end=True))
    fitted = fit(observations)
    assert fitted.front_end_s == pytest.approx(0.030, abs=0.010)
    assert fitted.step(prefilling(2000)) == pytest.approx(COST(prefilling(2000)), rel=0.1)


def test_what_was_observed_through_the_front_end_takes_longer_by_it():
    fitted = FittedCost(COST, front_end_s=0.5)
    steps = (decoding([10]), decoding([11]))
    alone, outside = Observation(steps, 1.0), Observation(steps, 1.0, through_front_end=True)
    assert fitted.seconds(alone) == pytest.approx(sum(map(COST, steps)))
    assert fitted.seconds(outside) - fitted.seconds(alone) == pytest.approx(0.5)


def test_no_step_is_said_to_take_no_time():
    nothing = StepCost(0.0, 96, 1e-3, 0.0, 0.0, 0.0)
    assert FittedCost(nothing, 0.0).seconds(Observation((decoding([5]),), 1.0)) > 0
