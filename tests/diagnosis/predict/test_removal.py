"""Without its cause, a replay of the window loses little; without anything else, as much as before."""

from dataclasses import replace

import pytest

from phasewise.core.slo import Slo
from phasewise.diagnosis.finding import Cause, Phase
from phasewise.diagnosis.predict.removal import Hints, removals
from phasewise.diagnosis.predict.setup import Setup
from tests.builders import EPOCH_S, make_timeline
from tests.diagnosis.predict.traffic_builders import SETUP, SHAPE, every, make_fit, make_recorded

SLO = Slo(ttft_s=0.3, tpot_s=0.5)


def timelines_of(requests):
    """As measured: their lengths and times of arrival are what a replay takes from them."""
    return [
        make_timeline(
            tuple(0.5 + 0.05 * index for index in range(it.output_tokens)),
            request_id=it.request_id,
            started_unix_s=EPOCH_S + it.came_s,
            prompt_tokens=it.prompt_tokens,
            output_tokens=it.output_tokens,
        )
        for it in requests
    ]


def start_shares(requests, setup, slo=SLO, **hints):
    found = removals(timelines_of(requests), setup, [make_fit()], slo, Hints(window_s=10.0, **hints))
    return found.shares.get(Phase.START, {})


def test_a_cap_is_the_cause_if_requests_start_in_time_without_it():
    shares = start_shares(every(0.1, 20), Setup(replace(SHAPE, max_num_seqs=1)))
    assert shares[Cause.BATCH_CAP_LOW] == pytest.approx(1.0, abs=0.1)


def test_a_cap_that_nobody_waits_for_is_none():
    assert Cause.BATCH_CAP_LOW not in start_shares(every(0.1, 20), Setup(replace(SHAPE, max_num_seqs=32)))


def test_requests_that_come_together_would_start_in_time_one_by_one():
    together = [make_recorded(index, 0.0, prompt_tokens=400, output_tokens=4) for index in range(12)]
    assert start_shares(together, SETUP, bursty=True)[Cause.BURSTS] > 0.6
    assert Cause.BURSTS not in start_shares(together, SETUP)


def test_a_few_long_prompts_are_the_cause_where_the_others_are_short():
    mixed = [
        make_recorded(index, 0.4 * index, prompt_tokens=1500 if index % 4 == 0 else 40, output_tokens=4)
        for index in range(16)
    ]
    assert start_shares(mixed, SETUP)[Cause.LONG_PROMPTS] > 0.6


def test_text_that_is_computed_again_is_the_cause_if_prompts_are_short_without_it():
    alike = every(0.3, 16, prompt_tokens=600, output_tokens=4)
    slo = Slo(ttft_s=0.05, tpot_s=0.5)
    shares = start_shares(alike, SETUP, slo, repeated=(Cause.PREFIX_SALTED, 0.95))
    assert shares[Cause.PREFIX_SALTED] > 0.6


def test_steps_that_get_slower_have_no_name():
    found = removals(
        timelines_of(every(0.2, 24, prompt_tokens=40, output_tokens=30)),
        SETUP,
        [make_fit()],
        Slo(ttft_s=30.0, tpot_s=0.015),
        Hints(slower=3.0, window_s=10.0),
    )
    assert found.slower == 3.0
    assert found.shares[Phase.STREAM][None] > 0.3


def test_without_costs_or_with_few_requests_nothing_is_replayed():
    some = timelines_of(every(0.1, 20))
    assert removals(some, SETUP, [], SLO, Hints()) is None
    assert removals(some[:3], SETUP, [make_fit()], SLO, Hints()) is None


def test_what_was_measured_stands_beside_what_the_replay_loses():
    requests = every(0.1, 20)
    found = removals(timelines_of(requests), SETUP, [make_fit()], SLO, Hints())
    assert found.measured_s[Phase.START] == pytest.approx(20 * 0.2)
