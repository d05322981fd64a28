"""What a changed setting would spare of what a window lost, by a replay."""

from dataclasses import replace

import pytest

from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.predict.costs import KnownCosts
from phasewise.diagnosis.predict.setup import Setup
from phasewise.diagnosis.predict.window_replay import window_replay
from tests.builders import EPOCH_S, make_timeline
from tests.diagnosis.predict.traffic_builders import SETUP, SHAPE, every, make_fit

SLO = Slo(ttft_s=0.3, tpot_s=0.5)


def timelines_of(requests):
    """As measured: their lengths and times of arrival are what a replay takes from them."""
    return [
        make_timeline(
            tuple(0.5 + 0.05 * index for index in range(request.output_tokens)),
            request_id=request.request_id,
            started_unix_s=EPOCH_S + request.came_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
        )
        for request in requests
    ]


def replay_of(timelines, setup=SETUP, until_s=EPOCH_S + 60.0, measured_s=None):
    return window_replay(timelines, setup, KnownCosts([make_fit()]), SLO, until_s, measured_s)


def test_with_few_requests_nothing_is_replayed():
    assert replay_of(timelines_of(every(0.1, 20))[:3]) is None


def test_what_was_measured_stands_beside_what_the_replay_loses():
    assert replay_of(timelines_of(every(0.1, 20))).measured_s == pytest.approx(20 * 0.2)


def test_requests_that_still_wait_count_with_their_wait_in_the_window_and_in_its_replay():
    requests = every(0.1, 20)
    waiting = [
        replace(open_one, outcome=Outcome.UNFINISHED, content_times_s=(), output_tokens=None, ended_s=2.0)
        for open_one in timelines_of(requests[10:])
    ]
    found = replay_of(
        [*timelines_of(requests[:10]), *waiting], Setup(replace(SHAPE, max_num_seqs=1)), EPOCH_S + 4.0
    )
    assert found.measured_s == pytest.approx(10 * 0.2 + 10 * 1.7)
    # Nobody can have lost more than the time until the window closed.
    assert 0 < found.lost_s <= 20 * 4.0


def replayed(seqs, lost_s):
    """Twenty requests that come fifty a second, of which that much was lost at the start."""
    setup, measured_s = Setup(replace(SHAPE, max_num_seqs=seqs)), lost_s
    requests = timelines_of(every(0.02, 20))
    return replay_of(requests, setup, measured_s=measured_s)


def lost_in(seqs):
    return replayed(seqs, 1.0).lost_s


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
