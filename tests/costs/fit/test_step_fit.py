"""What a fit says of steps, and how sure it says it is."""

from dataclasses import replace
from functools import cache
from math import exp

import numpy as np
import pytest

from phasewise.core.errors import MeasurementError
from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import CostPart, StepKind, decoding, prefilling
from phasewise.costs.fit.step_fit import CONFIDENCE, FEWEST_ERRORS, error_span, fit_steps
from tests.costs.step_builders import ALONE, COST, PROMPTS, STREAMS, WORKS, mixed, observe

JITTER = 0.1
TRUE_PARTS = {
    CostPart.FLOOR: COST.floor_s,
    CostPart.TOKENS: COST.per_token_s,
    CostPart.BEYOND_KNEE: COST.beyond_knee_s_per_token,
    CostPart.ATTENTION: COST.attention_s_per_token_pair,
    CostPart.KV_READ: COST.kv_read_s_per_token,
    CostPart.REQUESTS: COST.per_request_s,
}


def make_fit(seed=0, slowed=0.0):
    return _made_once(seed, slowed)


@cache
def _made_once(seed, slowed):
    rng = np.random.default_rng(seed)
    return fit_steps(observe(COST, rng, jitter=JITTER, slowed=slowed), rng)


@cache
def make_fit_without_mixed_steps():
    rng = np.random.default_rng(7)
    return fit_steps(observe(COST, rng, [*ALONE, *STREAMS], readings=1), rng)


# --- the cost ---------------------------------------------------------------------------------------------


def test_the_true_coefficients_lie_in_their_intervals():
    """At 90% each: of 18 intervals fewer than 14 would hold by chance 3 times in 100. Seen: 16 here."""
    inside = [
        interval.low <= TRUE_PARTS[part] <= interval.high
        for seed in range(3)
        for part, interval in make_fit(seed).intervals.items()
    ]
    assert len(inside) == 3 * len(CostPart)
    assert sum(inside) >= 14


def test_the_interval_of_the_knee_holds_it():
    knees = [make_fit(seed).knee_tokens for seed in range(3)]
    assert all(knee.low <= COST.knee_tokens <= knee.high for knee in knees)


def test_intervals_grow_with_the_noise():
    quiet, noisy = make_fit().intervals, make_fit(0, 0.33).intervals
    for part in (CostPart.FLOOR, CostPart.ATTENTION, CostPart.KV_READ):
        assert noisy[part].high - noisy[part].low > quiet[part].high - quiet[part].low


def test_the_order_of_observations_does_not_matter():
    observations = observe(COST, np.random.default_rng(1), readings=1)
    shuffled = [observations[index] for index in np.random.default_rng(2).permutation(len(observations))]
    assert fit_steps(shuffled, np.random.default_rng(3)) == fit_steps(observations, np.random.default_rng(3))


def test_what_a_client_waits_beyond_the_steps_has_an_interval():
    """Stated 90%; in 7 of 10 seeds it held the true value, as a part that cannot be negative takes some."""
    rng = np.random.default_rng(2)
    prompts = [prefilling(tokens) for tokens in PROMPTS[:11] * 8]
    outside = [
        Observation(
            (work,),
            (COST(work) + 0.030) * exp(rng.normal(0, JITTER)),
            through_front_end=True,
            at_s=1000.0 + 10.0 * number,
        )
        for number, work in enumerate(prompts)
    ]
    fit = fit_steps([*observe(COST, rng, STREAMS), *outside], rng)
    assert fit.front_end_s.low <= 0.030 <= fit.front_end_s.high
    assert fit.front_end_s.high - fit.front_end_s.low < 0.020


def test_its_draws_are_as_fast_as_the_machine_was_at_some_moment():
    rng = np.random.default_rng(4)
    steady = observe(COST, rng, jitter=0.02)
    # Every second minute somebody else has a quarter of the processor.
    shared = [replace(it, seconds=it.seconds * (4 / 3 if it.at_s // 60 % 2 else 1.0)) for it in steady]
    work = decoding([256] * 4)
    alike, apart = (
        [draw.step(work) / COST(work) for draw in fit_steps(observed, rng).draws]
        for observed in (steady, shared)
    )
    assert max(alike) / min(alike) < 1.15
    assert min(apart) < 1.1
    assert max(apart) > 1.25


# --- its errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", StepKind)
def test_held_out_errors_are_near_the_machines_own_noise(kind):
    """The median deviation of a spread of 0.1 is 0.067. Over 8 seeds 0.056 to 0.092 were seen."""
    assert 0.05 < make_fit().held_out_error(kind) < 0.1


@pytest.mark.parametrize("slowed", [0.0, 0.33])
def test_new_steps_fall_into_their_intervals_about_as_often_as_said(slowed):
    """Stated 90%; over 8 fits 88 to 92% of each kind were seen. Three fits are allowed 5 points."""
    rng = np.random.default_rng(99)
    covered = []
    for seed in range(3):
        fit = make_fit(seed, slowed)
        for step in observe(COST, rng, visits=1, readings=8, jitter=JITTER, slowed=slowed):
            interval = fit.predict(step.works[0]).interval
            covered.append(interval.low <= step.seconds <= interval.high)
    assert np.mean(covered) == pytest.approx(CONFIDENCE, abs=0.05)


def test_steps_between_those_that_were_fitted_are_predicted_too():
    for work in (prefilling(900), decoding([700] * 12), mixed(500, 6, 300)):
        assert make_fit().predict(work).seconds == pytest.approx(COST(work), rel=0.08)


def test_an_error_span_leaves_room_for_what_lies_outside_all_errors():
    assert error_span([float(n) for n in range(FEWEST_ERRORS - 1)]) is None
    assert error_span([float(n) for n in range(FEWEST_ERRORS)]) == (0.0, FEWEST_ERRORS - 1.0)
    errors = np.random.default_rng(0).permutation(999).tolist()
    assert error_span(errors) == (49, 949)


# --- what it does not know --------------------------------------------------------------------------------


def test_mixed_steps_are_unknown_when_only_pure_ones_were_seen():
    fit = make_fit_without_mixed_steps()
    assert fit.predict(mixed(500, 4, 256)) is None
    assert fit.held_out_error(StepKind.MIXED) is None
    assert fit.predict(prefilling(500)) is not None
    assert fit.predict(decoding([256] * 4)) is not None


@pytest.mark.parametrize("work", [prefilling(40_000), decoding([256] * 200), decoding([60_000])])
def test_a_step_far_from_all_that_was_seen_is_unknown(work):
    assert make_fit().predict(work) is None


def test_too_few_steps_are_rejected_with_what_to_do():
    few = observe(COST, np.random.default_rng(0), WORKS[:10], visits=1)
    with pytest.raises(MeasurementError, match="20 steps") as raised:
        fit_steps(few, np.random.default_rng(0))
    assert "measure for longer" in str(raised.value.hint)


def test_many_steps_of_few_regimes_are_rejected():
    alike = observe(COST, np.random.default_rng(0), [decoding([100] * 4), prefilling(64)], readings=20)
    with pytest.raises(MeasurementError, match="in 2 regimes"):
        fit_steps(alike, np.random.default_rng(0))


def test_no_steps_at_all_are_rejected():
    with pytest.raises(MeasurementError):
        fit_steps([], np.random.default_rng(0))
