"""An engine that stands still with requests in it is told from one that computes a long step."""

from dataclasses import replace

import pytest

from phasewise.core.engine_metrics import LoadReading
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.analysis.counter_series import ReadingSeries, series_of
from phasewise.diagnosis.analysis.standstill import (
    HUNG_S,
    LEAST_S,
    cold_gaps,
    standstills_of_loads,
    standstills_of_steps,
    step_gaps,
)
from tests.builders import EPOCH_S, make_step, make_timeline

WINDOW = (0.0, 30.0)


def reading(at_s, steps, running=2, waiting=0, **fields):
    tokens = {"step_tokens": 2.0 * steps, "output_tokens": 2.0 * steps, "prompt_tokens": 100.0}
    return LoadReading(at_s, running, waiting, 0.2, steps=float(steps), **(tokens | fields))


def going(until_s, from_s=0.0, steps=0, **fields):
    """Two streams, ten steps a second, read four times a second."""
    count = round((until_s - from_s) * 4)
    return [reading(from_s + it / 4, steps + round(it * 2.5), **fields) for it in range(count + 1)]


def test_an_engine_that_goes_on_has_no_standstill():
    assert standstills_of_loads("e", going(30.0), WINDOW) == ()


def test_counters_that_do_not_move_are_a_standstill():
    before = going(10.0)
    still = [replace(before[-1], at_unix_s=10.0 + it / 4) for it in range(1, 41)]
    after = going(30.0, from_s=20.25, steps=102, first_tokens=3.0, ttft_sum_s=21.0)
    (found,) = standstills_of_loads("e", before + still + after, WINDOW)
    assert found.seconds == pytest.approx(10.0, abs=0.5)
    assert (found.requests, found.first_tokens, found.ttft_sum_s, found.lasts) == (2, 3.0, 21.0, False)


def test_an_engine_that_does_not_answer_stands_still():
    loads = going(10.0) + going(30.0, from_s=21.0, steps=101)
    (found,) = standstills_of_loads("e", loads, WINDOW)
    assert found.seconds == pytest.approx(11.0, abs=0.5)


def test_a_long_step_of_prompts_is_no_standstill_but_stalls_streams():
    before = going(10.0)
    tokens = {"step_tokens": before[-1].step_tokens + 2_000, "prompt_tokens": 2_100.0}
    after = [replace(it, **tokens) for it in going(30.0, from_s=14.0, steps=101)]
    loads = before + after
    assert standstills_of_loads("e", loads, WINDOW) == ()
    (gap,) = series_of({"e": loads}, WINDOW).prompt_gaps
    assert (gap.prompt_tokens, gap.streams) == (1_998.0, 2)
    assert gap.seconds == pytest.approx(4.0, abs=0.3)


def test_an_idle_engine_does_not_stand_still():
    idle = [reading(10.0 + it / 4, 98, running=0) for it in range(40)]
    assert standstills_of_loads("e", going(9.75) + idle + going(30.0, 20.0, 98), WINDOW) == ()
    assert series_of({"e": idle}, WINDOW) == replace(ReadingSeries(), waited_s=0.0)


def test_an_engine_that_makes_no_progress_until_the_end_is_hung():
    before = going(20.0)
    (found,) = standstills_of_loads("e", before, WINDOW)
    assert found.hangs
    assert found.seconds == pytest.approx(10.0)


def test_an_engine_that_stands_still_for_less_pauses():
    (found,) = standstills_of_loads("e", going(20.0), (0.0, 20.0 + HUNG_S - 1))
    assert found.lasts
    assert not found.hangs
    assert not standstills_of_loads("e", going(20.0), (0.0, 20.0 + LEAST_S / 2))


def test_a_reading_that_is_only_a_little_late_is_no_gap():
    loads = [replace(it, at_unix_s=it.at_unix_s + 0.1 * (it.at_unix_s % 0.5)) for it in going(30.0)]
    assert step_gaps(loads) == ()


def test_slow_steps_of_a_young_engine_are_cold_if_the_same_work_is_fast_later():
    cold = [reading(it / 4, it // 4, first_tokens=float(it // 4)) for it in range(21)]
    loads = cold + going(30.0, from_s=5.25, steps=5)
    assert sum(gap.seconds - gap.needed_s for gap in cold_gaps(loads)) == pytest.approx(4.5, abs=0.6)
    assert series_of({"e": loads}, WINDOW, ages={"e": 20.0}).cold_gaps
    assert not series_of({"e": loads}, WINDOW, ages={"e": 7200.0}).cold_gaps


def test_steps_that_are_slow_throughout_are_not_cold():
    assert cold_gaps([reading(it / 4, it // 4) for it in range(121)]) == ()


# --- From the step record.


def make_log(durations_s, running):
    ends_s = [sum(durations_s[: index + 1]) for index in range(len(durations_s))]
    return StepLog([make_step(seq, ended_s, running=running) for seq, ended_s in enumerate(ends_s, 1)])


def test_a_step_that_takes_far_longer_than_its_like_was_paused():
    log = make_log([0.1] * 40 + [8.0] + [0.1] * 40, running=2)
    (reading_,) = readings_of({"e": (log,)})["e"]
    (found,) = standstills_of_steps("e", reading_, (), (EPOCH_S, EPOCH_S + 60.0))
    assert found.seconds == pytest.approx(7.9, abs=0.1)
    assert not found.lasts


def test_requests_that_are_open_at_an_engine_without_steps_show_that_it_hangs():
    log = make_log([0.1] * 40, running=1)
    (reading_,) = readings_of({"w0": (log,)})["w0"]
    waiting = make_timeline((), outcome=Outcome.UNFINISHED, started_unix_s=EPOCH_S + 3.0, ended_s=17.0)
    (attempt,) = waiting.attempts
    waiting = replace(waiting, attempts=(replace(attempt, outcome=Outcome.UNFINISHED),))
    (found,) = standstills_of_steps("w0", reading_, (waiting,), (EPOCH_S, EPOCH_S + 20.0))
    assert found.lasts
    assert (found.requests, found.seconds) == (1, pytest.approx(16.0, abs=0.1))
    assert standstills_of_steps("w0", reading_, (), (EPOCH_S, EPOCH_S + 20.0)) == ()
