"""Without its cause, a replay of the window loses little; without anything else, as much as before."""

from dataclasses import replace

import pytest

from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.analysis.window_summary import Rest
from phasewise.diagnosis.finding import Cause, Phase
from phasewise.diagnosis.predict.costs import KnownCosts
from phasewise.diagnosis.predict.removal import window_replay
from phasewise.diagnosis.predict.setup import Setup
from phasewise.diagnosis.predict.suspects import Hints
from phasewise.diagnosis.predict.unnamed import Unnamed
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


def removals(*about):
    replayed = window_replay(*about)
    return None if replayed is None else replayed.removals()


def start_shares(requests, setup, slo=SLO, **hints):
    found = removals(
        timelines_of(requests), setup, KnownCosts([make_fit()]), slo, Hints(window_s=10.0, **hints)
    )
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
        KnownCosts([make_fit()]),
        Slo(ttft_s=30.0, tpot_s=0.015),
        Hints(unnamed=Unnamed(slower=3.0), window_s=10.0),
    )
    assert found.slower == 3.0
    assert found.shares[Phase.STREAM][None] > 0.3


def test_a_starved_core_is_the_cause_if_its_steps_would_be_in_time_with_cores_of_their_own():
    slow = every(0.4, 16, prompt_tokens=600, output_tokens=4)
    slo = Slo(ttft_s=0.1, tpot_s=0.5)
    assert start_shares(slow, SETUP, slo, starved=0.5)[Cause.ENGINE_STARVED] > 0.6
    assert Cause.ENGINE_STARVED not in start_shares(slow, SETUP, slo)


def test_with_few_requests_nothing_is_replayed():
    some = timelines_of(every(0.1, 20))
    assert removals(some[:3], SETUP, KnownCosts([make_fit()]), SLO, Hints()) is None


def test_what_was_measured_stands_beside_what_the_replay_loses():
    requests = every(0.1, 20)
    found = removals(timelines_of(requests), SETUP, KnownCosts([make_fit()]), SLO, Hints())
    assert found.measured_s[Phase.START] == pytest.approx(20 * 0.2)


def test_time_that_every_prompt_takes_whatever_its_length_has_no_name():
    found = removals(
        timelines_of(every(0.4, 20, prompt_tokens=600, output_tokens=4)),
        SETUP,
        KnownCosts([make_fit()]),
        Slo(ttft_s=0.1, tpot_s=0.5),
        Hints(unnamed=Unnamed(per_prompt_s=0.18), window_s=10.0),
    )
    assert found.per_prompt_s == 0.18
    assert found.shares[Phase.START][None] > 0.6


def test_requests_that_still_wait_count_with_their_wait_in_the_window_and_in_its_replay():
    """Without a cap, those that were never served would have started in time."""
    requests = every(0.1, 20)
    ended = timelines_of(requests[:10])
    waiting = [
        replace(it, outcome=Outcome.UNFINISHED, content_times_s=(), output_tokens=None, ended_s=2.0)
        for it in timelines_of(requests[10:])
    ]
    until_s = EPOCH_S + 4.0
    found = removals(
        [*ended, *waiting],
        Setup(replace(SHAPE, max_num_seqs=1)),
        KnownCosts([make_fit()]),
        SLO,
        Hints(window_s=4.0, ended_unix_s=until_s),
    )
    assert found.measured_s[Phase.START] == pytest.approx(10 * 0.2 + 10 * 1.7)
    assert found.shares[Phase.START][Cause.BATCH_CAP_LOW] > 0.8
    # Nobody can have lost more than the time until the window closed.
    assert found.lost_s[Phase.START] <= 20 * 4.0


@pytest.mark.parametrize(
    ("every_s", "slo", "rest"),
    [
        (0.05, Slo(ttft_s=0.6, tpot_s=0.5), Rest.LOAD),
        (2.0, Slo(ttft_s=0.1, tpot_s=0.5), Rest.PROMPTS),
        (2.0, Slo(ttft_s=5.0, tpot_s=0.01), Rest.STEPS),
    ],
)
def test_what_is_left_is_load_unless_a_request_alone_is_slow(every_s, slo, rest):
    requests = timelines_of(every(every_s, 24, prompt_tokens=600, output_tokens=10))
    assert removals(requests, SETUP, KnownCosts([make_fit()]), slo, Hints(window_s=10.0)).rest is rest


def test_an_engine_that_served_nobody_could_have_served_half():
    shares = start_shares(every(0.1, 30, prompt_tokens=400, output_tokens=4), SETUP, engines=2)
    assert shares[Cause.UNEVEN_LOAD] > 0.5


# --- Changes of a setting.


def replayed(seqs, lost_s):
    """Twenty requests that come fifty a second, of which that much was lost at the start."""
    setup, measured_s = Setup(replace(SHAPE, max_num_seqs=seqs)), {Phase.START: lost_s}
    requests = timelines_of(every(0.02, 20))
    return window_replay(requests, setup, KnownCosts([make_fit()]), SLO, Hints(window_s=10.0), measured_s)


def lost_in(seqs):
    return sum(replayed(seqs, 1.0).removals().lost_s.values())


def test_a_change_gains_what_its_replay_spares():
    window = replayed(3, lost_in(3))
    assert window.gain(LeverChange("max_num_seqs", 8)) == pytest.approx(1.0, abs=0.1)
    assert window.gain(LeverChange("max_num_seqs", 3)) == pytest.approx(0.0)
    assert window.gain(LeverChange("max_num_batched_tokens", 4)) < -0.5


def test_one_or_two_streams_at_once_do_not_say_what_more_would_cost():
    window = replayed(2, lost_in(2))
    assert window.gain(LeverChange("max_num_seqs", 8)) is None
    assert window.gain(LeverChange("max_num_seqs", 1)) < 0


def test_a_replay_that_is_not_like_the_window_says_nothing_of_a_change():
    assert replayed(3, 10 * lost_in(3)).gain(LeverChange("max_num_seqs", 8)) is None


def test_a_change_that_is_not_modelled_has_no_gain():
    assert replayed(1, lost_in(1)).gain(LeverChange("kv_dtype", "fp8")) is None


def test_chunks_of_a_size_that_was_never_seen_are_not_judged():
    window = replayed(1, lost_in(1))
    assert window.gain(LeverChange("max_num_batched_tokens", 1_000_000)) is not None
    longer = replace(window, traffic=replace(window.traffic, requests=LONGER))
    assert longer.gain(LeverChange("max_num_batched_tokens", 1_000_000)) is None


LONGER = tuple(every(0.1, 20, prompt_tokens=500_000))
