"""Drawn costs are wrong as held-out errors were: alike in one run, a little otherwise in the next."""

from itertools import pairwise
from math import log
from statistics import median, pstdev

import numpy as np
import pytest

from phasewise.costs.fit.step import decoding, prefilling
from phasewise.diagnosis.predict.costs import DrawnForm, KnownCosts, RunCost
from tests.diagnosis.predict.traffic_builders import COST, make_fit

DECODE, PREFILL = decoding([100]), prefilling(500)


def logs(cost, work=DECODE, count=200):
    return [log(cost(work) / COST(work)) for _ in range(count)]


def form(errors, seed):
    return DrawnForm(KnownCosts([make_fit(errors=errors)]), np.random.default_rng(seed))


def normal(spread):
    return tuple(sorted(np.random.default_rng(0).normal(0.0, spread, 400)))


def test_exact_fits_give_the_fitted_cost():
    assert RunCost(form((0.0,) * 30, 1))(DECODE) == pytest.approx(COST(DECODE))


def test_single_steps_are_spread_as_held_out_errors_are():
    steps = [error for seed in range(200) for error in logs(RunCost(form(normal(0.2), seed)), count=5)]
    assert pstdev(steps) == pytest.approx(0.2, rel=0.2)


def test_two_runs_of_one_form_differ_less_than_runs_of_two():
    def apart(first, second):
        return abs(median(logs(first)) - median(logs(second)))

    forms = [form(normal(0.2), seed) for seed in range(60)]
    same = [apart(RunCost(each), RunCost(each)) for each in forms]
    other = [apart(RunCost(one), RunCost(two)) for one, two in pairwise(forms)]
    assert 0 < median(same) < median(other)


def test_steps_that_were_held_up_are_not_taken_for_slow_runs():
    errors = tuple(sorted((0.0,) * 90 + (1.2,) * 10))
    runs = [median(logs(RunCost(form(errors, seed)))) for seed in range(40)]
    assert sorted(runs)[35] == pytest.approx(0.0)
