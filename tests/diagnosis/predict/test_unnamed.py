"""Steps that slow down, and prompts that take time whatever their length, are found in a record of steps."""

from dataclasses import replace
from random import Random

import pytest

from phasewise.core.steps import logs_by_rank
from phasewise.diagnosis.predict.costs import KnownCosts, steps_by_engine
from phasewise.diagnosis.predict.unnamed import unnamed_in
from tests.diagnosis.predict.traffic_builders import COST, make_fit
from tests.diagnosis.virtual_records import recorded_steps


def found_in(cost):
    return unnamed_in(
        steps_by_engine({"e0": logs_by_rank(recorded_steps(cost, 900))}), KnownCosts([make_fit()])
    )


def test_usual_steps_have_nothing_of_it():
    found = found_in(COST)
    assert (found.slower, found.per_prompt_s, found.in_stretches) == (1.0, 0.0, 0.0)


def test_a_lock_at_every_admission_is_time_per_prompt():
    locked = lambda work: COST(work) + 0.9 * (work.requests - work.decode_tokens) * bool(work.prompt_tokens)  # noqa: E731
    assert found_in(locked).per_prompt_s == pytest.approx(0.9, rel=0.25)


def test_slow_prompts_take_their_time_by_the_token():
    slow = replace(COST, beyond_knee_s_per_token=4e-3, knee_tokens=16)
    assert found_in(slow).per_prompt_s == 0.0


def test_steps_that_creep_are_slower_at_the_end():
    steps = iter(range(10**6))
    creeping = lambda work: COST(work) * (1 + next(steps) / 600)  # noqa: E731
    assert found_in(creeping).slower > 1.5


def test_steps_that_take_longer_for_a_while_do_so_in_stretches():
    steps = iter(range(10**6))
    in_turns = lambda work: COST(work) * (2.5 if next(steps) % 80 < 30 else 1.0)  # noqa: E731
    assert found_in(in_turns).in_stretches > 0.3


def test_noise_that_comes_and_goes_with_each_step_is_no_stretch():
    rng = Random(1)  # noqa: S311 - noise, not a secret
    noisy = lambda work: COST(work) * rng.choice((1.0, 2.5))  # noqa: E731
    assert found_in(noisy).in_stretches == 0.0
