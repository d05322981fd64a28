"""Requests that are open when a window closes are found from how many an engine had, before they end."""

import pytest

from phasewise.core.steps import logs_by_rank
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.analysis.engine_view import timelines_from_steps
from phasewise.diagnosis.analysis.open_requests import InEngine, arrivals, waiting_since
from phasewise.simulator.engine import EngineShape, VirtualEngine, VirtualRequest
from tests.builders import EPOCH_S
from tests.diagnosis.predict.traffic_builders import COST


def test_those_that_wait_came_last():
    moments = [InEngine(0.0, 0, 1, 0), InEngine(1.0, 1, 2, 0), InEngine(2.0, 2, 2, 1), InEngine(3.0, 2, 2, 2)]
    assert arrivals(moments) == (0.0, 0.5, 0.5, 1.5, 1.5, 2.5)
    assert waiting_since(moments) == (1.5, 2.5)


def test_nobody_waits_where_all_run_or_nothing_is_known():
    assert waiting_since([InEngine(0.0, 0, 3, 0), InEngine(1.0, 0, 5, 0)]) == ()
    assert waiting_since([]) == ()


def test_clients_that_leave_are_no_arrivals():
    moments = [InEngine(0.0, 4, 1, 0), InEngine(1.0, 2, 1, 0), InEngine(2.0, 3, 1, 0)]
    assert waiting_since(moments) == (0.0, 0.0, 1.5)


COMES_EVERY_S = 0.3


def steps_of(requests, until_s):
    """The record of an engine with two slots until then."""
    engine = VirtualEngine(EngineShape(max_num_seqs=2), COST)
    coming = [
        VirtualRequest(f"r{number}", (number,) * 64, 20, EPOCH_S + number * COMES_EVERY_S, ignore_eos=True)
        for number in range(requests)
    ]
    now_s, steps = EPOCH_S, []
    while now_s < EPOCH_S + until_s:
        while coming and (coming[0].arrived_s <= now_s or not engine.has_work):
            now_s = max(now_s, coming[0].arrived_s)
            engine.add(coming[0], coming.pop(0).arrived_s)
        report = engine.step(now_s)
        if report is None:
            break
        steps.append(report.step)
        now_s = report.step.ended_unix_s
    return steps


@pytest.mark.parametrize("until_s", [1.0, 2.0, 3.0])
def test_a_record_of_steps_shows_who_is_open_and_since_when(until_s):
    steps = steps_of(12, until_s)
    (log,) = logs_by_rank(steps)
    last = steps[-1]
    seen = timelines_from_steps(log, "e0", last.ended_unix_s)
    open_ones = [it for it in seen if it.outcome is Outcome.UNFINISHED]
    waiting = [it for it in open_ones if not it.content_times_s]
    assert len(waiting) == last.waiting
    assert len(open_ones) == last.waiting + last.running
    ended = sum(len(step.finished) for step in steps)
    came_s = [EPOCH_S + (ended + number) * COMES_EVERY_S for number in range(len(open_ones))]
    found_s = sorted(it.started_unix_s for it in open_ones)
    assert found_s == pytest.approx(came_s, abs=0.15)


def test_open_streams_have_their_tokens_so_far():
    steps = steps_of(2, 0.5)
    (log,) = logs_by_rank(steps)
    until_s = steps[-1].ended_unix_s
    tokens = [len(it.content_times_s) for it in timelines_from_steps(log, "e0", until_s)]
    assert sum(tokens) == sum(step.decode_tokens + step.first_tokens for step in steps)


def test_without_a_time_only_ended_requests_are_there():
    (log,) = logs_by_rank(steps_of(12, 2.0))
    assert all(it.outcome is Outcome.SUCCEEDED for it in timelines_from_steps(log, "e0"))
