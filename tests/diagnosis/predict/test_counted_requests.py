"""Requests and steps of a stock engine are put together from its counters."""

import pytest

from phasewise.core.engine_metrics import LoadReading
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.predict.counted import Typical, counted_requests, counted_steps

TYPICAL = Typical(prompt_tokens=100.0, cached_share=0.5, output_tokens=10.0, token_s=0.05)


def reading(at_s, running=0, waiting=0, **counts):
    known = {"steps": 0, "step_tokens": 0, "prompt_tokens": 0, "output_tokens": 0, "first_tokens": 0}
    return LoadReading(at_s, running, waiting, 0.1, **(known | {"finished": 0} | counts))


def test_the_first_that_came_has_the_first_token_and_its_prompt():
    loads = [
        reading(0.0),
        reading(0.25, running=1, waiting=1),
        reading(0.5, running=2, first_tokens=1, prompt_tokens=300),
        reading(2.0, running=1, first_tokens=2, prompt_tokens=350, finished=1),
    ]
    first, second = counted_requests("e0", loads, TYPICAL)
    assert (first.prompt_tokens, second.prompt_tokens) == (300, 50)
    assert first.started_unix_s == second.started_unix_s == pytest.approx(0.125)
    assert first.content_times_s[0] == pytest.approx(0.25)
    assert second.content_times_s[0] == pytest.approx(1.125)
    assert first.outcome is Outcome.SUCCEEDED
    assert first.cached_tokens == 150


def test_who_waits_has_no_token_and_who_ran_before_needs_no_prompt():
    loads = [reading(0.0, running=1), reading(4.0, running=1, waiting=1)]
    ran, waits = counted_requests("e0", loads, TYPICAL)
    assert (ran.prompt_tokens, waits.prompt_tokens) == (1, 100)
    assert waits.outcome is Outcome.UNFINISHED
    assert (waits.content_times_s, waits.ended_s) == ((), pytest.approx(2.0))


def test_an_engine_that_counts_no_ends_shows_no_requests():
    assert counted_requests("e0", [reading(0.0), reading(1.0, finished=None)], TYPICAL) == ()


def test_steps_between_readings_carry_their_streams_and_the_prompts_that_were_ready():
    loads = [
        reading(0.0, running=2),
        reading(0.25, running=2, steps=5, step_tokens=10, output_tokens=10),
        reading(0.75, running=3, steps=9, step_tokens=10 + 309, output_tokens=19, first_tokens=1),
    ]
    decode, mixed = counted_steps(loads, TYPICAL)
    assert [(work.prompt_tokens, work.decode_tokens) for work in decode.works] == [(0, 2)] * 5
    assert [work.prompt_tokens for work in mixed.works] == [0, 0, 0, 300]
    assert mixed.seconds == pytest.approx(0.5)
    assert decode.works[0].kv_read_tokens == 2 * 105


def test_slow_steps_belong_to_the_prompt_that_is_ready_after_them():
    """Engines count a prompt's tokens when all of its chunks are computed."""
    usual = [
        reading(0.25 * at, running=1, steps=5 * at, step_tokens=5 * at, output_tokens=5 * at)
        for at in range(6)
    ]
    chunk = reading(2.25, running=1, steps=26, step_tokens=26, output_tokens=26)
    ready = reading(3.25, running=2, steps=27, step_tokens=27 + 4001, output_tokens=28, first_tokens=1)
    *_, last = counted_steps([*usual, chunk, ready], TYPICAL)
    assert (len(last.works), last.works[-1].prompt_tokens) == (2, 4000)
    assert last.seconds == pytest.approx(2.0)
