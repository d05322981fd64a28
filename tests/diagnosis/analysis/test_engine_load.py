"""How full an engine was follows from its steps and from its gauges alike."""

from dataclasses import replace

import pytest

from phasewise.core.engine_metrics import LoadReading
from phasewise.core.steps import StepLog
from phasewise.diagnosis.analysis.engine_load import engine_load_of, engine_load_of_gauges, step_shape_of
from tests.builders import EPOCH_S, make_finished, make_step
from tests.diagnosis.virtual_traffic import ask, play

WINDOW = (EPOCH_S, EPOCH_S + 10.0)


def steps_of(count, *, kv_usage=0.1, **fields):
    steps = [make_step(index, 0.1 * index, **fields) for index in range(1, count + 1)]
    return [replace(step, kv_usage=kv_usage) for step in steps]


def engine_load(steps, typical_tokens=None, kv_tokens=None, window=WINDOW):
    return engine_load_of(steps, window, typical_tokens, kv_tokens)


def test_requests_that_wait_beside_a_full_batch_are_capped_and_not_out_of_memory():
    found = engine_load(steps_of(100, running=4, waiting=3), 200, 10_000)
    assert found.waited_share == pytest.approx(0.99, abs=0.02)
    assert (found.capped_share, found.kv_full_share) == (pytest.approx(1.0), 0.0)
    assert (found.running_max, found.waiting_max) == (4, 3)


def test_requests_that_wait_for_space_of_their_size_are_out_of_memory():
    """85% of 1,000 tokens are used: no space for 200 more, though space for 100."""
    steps = steps_of(100, running=4, waiting=3, kv_usage=0.85)
    assert engine_load(steps, 200, 1000).kv_full_share == pytest.approx(1.0)
    assert engine_load(steps, 200, 1000).capped_share == 0.0
    assert engine_load(steps, 100, 1000).kv_full_share == 0.0


def test_a_prompt_larger_than_the_cache_does_not_make_an_empty_one_full():
    assert engine_load(steps_of(100, running=1, waiting=1, kv_usage=0.0), 2000, 1000).kv_full_share == 0.0


def test_without_the_caches_size_only_a_nearly_full_one_counts():
    assert engine_load(steps_of(10, waiting=1, kv_usage=0.97)).kv_full_share == pytest.approx(1.0)
    assert engine_load(steps_of(10, waiting=1, kv_usage=0.85)).kv_full_share == 0.0


def test_a_request_that_ended_in_a_step_ran_in_it():
    """Four slots: one is given up in every other step and taken again in the next."""
    ended = make_finished()
    steps = [
        make_step(index, 0.1 * index, running=3, waiting=2, finished=[ended])
        if index % 2
        else make_step(index, 0.1 * index, running=4, waiting=2)
        for index in range(1, 51)
    ]
    found = engine_load(steps)
    assert found.running_max == 4
    assert found.capped_share == pytest.approx(1.0)


def test_an_idle_engine_counts_as_empty():
    """Busy for one second of ten."""
    steps = steps_of(10, running=2)
    steps[-1] = replace(steps[-1], running=0)
    assert engine_load(steps).running_mean == pytest.approx(0.2, abs=0.05)
    assert engine_load(steps).waited_share == 0.0


def test_a_growing_queue_shows_as_growth():
    steps = [make_step(index, 0.1 * index, running=4, waiting=index // 10) for index in range(1, 101)]
    assert engine_load(steps).growth == pytest.approx(6.6, abs=0.5)
    from_the_first = (WINDOW[0] + 0.1, WINDOW[1])
    steady = steps_of(100, running=4, waiting=5)
    assert engine_load(steady, window=from_the_first).growth == pytest.approx(0.0, abs=1e-6)


def test_steps_outside_the_window_do_not_count():
    steps = [*steps_of(10, running=1), make_step(11, 30.0, running=9, waiting=9)]
    assert engine_load(steps).waiting_max == 0
    assert engine_load([make_step(1, 30.0)]) is None


def test_gauges_report_the_same_as_steps():
    samples = [LoadReading(EPOCH_S + at_s, 4, 3, 0.85) for at_s in range(10)]
    found = engine_load_of_gauges(samples, 200, 1000)
    assert (found.running_mean, found.waiting_mean, found.waited_share) == (4, 3, 1.0)
    assert found.kv_full_share == 1.0
    assert engine_load_of_gauges([]) is None
    assert engine_load_of_gauges(samples[:1]).waiting_max == 3


def shape(steps, window=WINDOW):
    return step_shape_of(StepLog(steps), window)


def test_a_budget_is_known_where_several_steps_were_cut_at_it():
    traffic = play([ask(0, 0.0, prompt_tokens=3000, output_tokens=4)], max_num_batched_tokens=512)
    found = step_shape_of(traffic.log, WINDOW)
    assert found.budget_tokens == 512
    assert found.chunk_p50_tokens == 512


def test_prompts_of_one_length_are_no_budget():
    """Five prompts of 300 tokens, one after the other: nothing was cut."""
    traffic = play([ask(index, 1.0 * index, prompt_tokens=300, output_tokens=2) for index in range(5)])
    assert step_shape_of(traffic.log, WINDOW).budget_tokens is None


def test_decode_steps_are_reported_by_how_many_streams_they_serve():
    quick = [make_step(index, 0.05 * index, decode=1) for index in range(1, 11)]
    slow = [make_step(index, 0.5 + 0.2 * (index - 10), decode=16, running=16) for index in range(11, 31)]
    found = shape([*quick, *slow])
    assert found.lone_step_s == pytest.approx(0.05)
    assert found.decode_step_p50_s == pytest.approx(0.2)
    assert found.busy_share == pytest.approx(0.445, abs=0.01)


def test_drafts_show_as_tokens_per_stream():
    steps = [make_step(index, 0.1 * index, decode=5, decode_requests=2) for index in range(1, 5)]
    assert shape(steps).tokens_per_stream_step == pytest.approx(2.5)


def test_no_steps_have_no_shape():
    assert shape([make_step(1, 30.0)]) is None
