"""A window's own steps show what steps cost, if they are of enough kinds and of engines that are alike."""

from dataclasses import replace

import numpy as np
import pytest

from phasewise.core.steps import logs_by_rank
from phasewise.costs.fit.step import StepCost, decoding, prefilling
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.predict.costs import FIT_STEPS, fit_window
from tests.builders import make_step
from tests.costs.step_builders import COST
from tests.diagnosis.virtual_records import recorded_steps

SLOW = StepCost(0.5, 4096, 0.0, 0.0, 0.0, 0.0)


def fitted(logs, setups=None):
    return fit_window(logs, np.random.default_rng(0), setups)


@pytest.fixture(scope="module")
def logs():
    return {"e0": logs_by_rank(recorded_steps(COST, 1_500))}


@pytest.fixture(scope="module")
def fit(logs):
    return fitted(logs)


def test_a_window_of_mixed_traffic_reports_what_steps_cost(fit):
    for work in (decoding([200] * 2), prefilling(500)):
        assert fit.cost(work) == pytest.approx(COST(work), rel=0.1)
    assert fit.predict(decoding([200] * 2)) is not None


def test_engines_of_another_setup_do_not_spoil_the_costs_of_the_busiest(logs, fit):
    other = logs_by_rank(recorded_steps(SLOW, 300, seed=1, rate_per_s=0.2))
    both = {"e1": other, **logs}
    assert fitted(both, {"e0": "small", "e1": "large"}) == fit
    assert fit.engines == {"e0"}


def test_costs_of_one_setup_are_not_read_into_the_steps_of_another(logs, fit):
    readings = readings_of({"e0": logs["e0"], "e1": logs["e0"]}, fit)
    assert readings["e0"][0].cost == fit.cost
    assert readings["e1"][0].cost is None


def test_too_few_steps_or_kinds_of_them_give_no_costs():
    assert fitted({}) is None
    assert fitted({"e0": logs_by_rank([make_step(seq, 0.1 * seq) for seq in range(200)])}) is None


def test_of_a_full_ring_only_the_latest_steps_are_fitted():
    logs = {f"e{index}": logs_by_rank(_renumbered(recorded_steps(COST, 700), 15)) for index in range(2)}
    assert sum(len(log) for ranks in logs.values() for log in ranks) > FIT_STEPS
    found = fitted(logs)
    assert found is not None
    assert found.observations <= FIT_STEPS


def _renumbered(steps, times):
    """The same traffic again and again, as one long record."""
    span_s = steps[-1].ended_unix_s - steps[0].ended_unix_s + 10.0
    return [
        _later(step, turn * len(steps) + index, turn * span_s)
        for turn in range(times)
        for index, step in enumerate(steps)
    ]


def _later(step, seq, by_s):
    ended = tuple(replace(it, request_id=f"{it.request_id}-{seq}") for it in step.finished)
    return replace(step, seq=seq, ended_unix_s=step.ended_unix_s + by_s, finished=ended)
