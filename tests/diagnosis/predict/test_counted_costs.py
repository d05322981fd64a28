"""From sums of steps, what a step, a stream and a prompt token take."""

import numpy as np
import pytest

from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepWork, decoding, prefilling
from phasewise.diagnosis.predict.counted import counted_costs

STEP_S, STREAM_S, TOKEN_S = 0.04, 0.001, 0.0008


def seconds(work):
    return STEP_S + STREAM_S * work.decode_tokens + TOKEN_S * work.prompt_tokens


def some_sums(count=60, *, prompts_always=False, seed=3):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        streams = int(rng.integers(1, 12))
        works = [StepWork(0, streams, streams)] * int(rng.integers(3, 8))
        if prompts_always or rng.random() < 0.4:
            works[-1] = StepWork(int(rng.integers(100, 900)), streams, streams + 1)
        yield Observation(tuple(works), sum(map(seconds, works)) * float(np.exp(rng.normal(0, 0.05))))


def test_all_three_are_found():
    known = counted_costs(some_sums()).of(decoding([100]))
    assert known.cost(decoding([100] * 8)) == pytest.approx(STEP_S + 8 * STREAM_S, rel=0.15)
    assert known.cost(prefilling(600)) == pytest.approx(STEP_S + 600 * TOKEN_S, rel=0.15)


def test_a_pause_is_not_taken_for_the_cost_of_work():
    usual = list(some_sums())
    stopped = [Observation(it.works, it.seconds + 8.0) for it in usual[:3]]
    assert counted_costs([*usual, *stopped]).of(decoding([100])).cost(decoding([100])) < 1.5 * STEP_S


def test_with_prompts_in_every_sum_or_with_few_sums_nothing_is_known():
    assert counted_costs(some_sums(prompts_always=True)) is None
    assert counted_costs(some_sums(8)) is None
