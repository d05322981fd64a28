"""Which steps are tried and until when."""

import pytest

from phasewise.core.errors import ConfigError
from phasewise.experiments.validate.plan import GROUPS, Step, chosen_steps, deadlines_s


def test_every_step_is_tried_unless_some_are_named():
    assert chosen_steps([]) == tuple(Step)
    assert chosen_steps(list(GROUPS)) == tuple(Step)
    assert chosen_steps(["bench"]) == (Step.ENVIRONMENT, Step.BENCH)


def test_faults_bring_the_calibration_that_sizes_them():
    assert Step.CALIBRATION in chosen_steps(["faults"])
    assert Step.CALIBRATION not in chosen_steps(["levers"])


def test_an_unknown_step_is_rejected_with_those_that_exist():
    with pytest.raises(ConfigError) as error:
        chosen_steps(["benhc"])
    assert "bench" in error.value.hint


@pytest.mark.parametrize("only", [[], ["environment", "bench"], ["levers"]])
def test_deadlines_follow_each_other_and_end_before_the_budget_does(only):
    ends = list(deadlines_s(chosen_steps(only), 1800.0).values())
    assert ends == sorted(ends)
    assert len(set(ends)) == len(ends)
    assert 1700 < ends[-1] < 1800
