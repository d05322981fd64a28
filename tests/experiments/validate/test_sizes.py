"""Planted traffic is as large as the machine makes it."""

import pytest

from phasewise.core.errors import MeasurementError
from phasewise.costs.fit.step import StepCost
from phasewise.experiments.validate.sizes import LONG, PlantSizes, prefill_s
from phasewise.simulator.step_times import PRESETS

MACHINES = {
    "a core": PRESETS["cpu-demo"],
    "a small GPU": StepCost(0.011, 256, 5.5e-5, 3.0e-9, 6.0e-8, 1.4e-4),
    "a large GPU": StepCost(0.027, 384, 8.0e-5, 1.5e-9, 3.0e-8, 2.2e-4),
}


@pytest.mark.parametrize("cost", MACHINES.values(), ids=MACHINES)
def test_a_long_prompt_misses_the_objective_that_short_ones_meet(cost):
    sizes = PlantSizes(cost, 8192)
    long = sizes.long(8, shared=True)
    tokens = long.plan.source.prompt.median_tokens
    assert 1.5 * sizes.slo.ttft_s < prefill_s(cost, tokens) <= 1.05 * LONG * sizes.slo.ttft_s
    assert prefill_s(cost, 96) < sizes.slo.ttft_s / 2
    assert 0.85 * tokens < long.plan.source.shared_prefix_tokens < tokens


def test_where_no_prompt_is_long_enough_the_error_says_what_to_change():
    fast = StepCost(0.003, 512, 1e-6, 1e-11, 1e-9, 1e-6)
    with pytest.raises(MeasurementError, match="8,120 tokens") as error:
        PlantSizes(fast, 8192).long(8, shared=False)
    assert "larger --model" in error.value.hint


def test_a_run_lasts_about_as_long_on_slow_and_fast_machines_and_always_has_some_requests():
    slow, fast = (PlantSizes(cost, 8192).short(2, 96, 32, at_once=2) for cost in list(MACHINES.values())[:2])
    assert 9 <= slow.plan.requests < fast.plan.requests <= 400
    assert PlantSizes(StepCost(2.0, 96, 0.01, 0, 0, 0), 8192).short(2, 96, 32, at_once=2).plan.requests == 9
