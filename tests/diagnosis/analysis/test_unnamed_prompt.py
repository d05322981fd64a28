"""The prompt of a request that was cut off is found in its engine's steps, and is not laid to others."""

import pytest

from phasewise.core.latency import ttft_breakdown, wait_so_far
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Outcome, Part
from phasewise.diagnosis.analysis.attribution import attribute, readings_of
from phasewise.diagnosis.analysis.request_life import life_of
from phasewise.diagnosis.analysis.step_reading import StepReading
from tests.builders import EPOCH_S, make_attempt, make_finished, make_step, make_timeline


def cut(content_times_s=(), ended_s=2.7, sent_s=0.0):
    attempt = make_attempt(outcome=Outcome.CANCELLED, started_s=sent_s, engine_request_id="cut")
    return make_timeline(
        content_times_s,
        attempts=(attempt,),
        outcome=Outcome.CANCELLED,
        ended_s=ended_s,
        prompt_tokens=None,
        cached_tokens=None,
        output_tokens=None,
    )


def prompt_step(seq, ended_s, tokens, prompts=1, **fields):
    return make_step(seq, ended_s, prompt=tokens, prompt_requests=prompts, decode=0, **fields)


IDLE = make_step(1, -5.0, running=0)
LONG = (IDLE, prompt_step(2, 2.0, 2048), prompt_step(3, 2.5, 331, first_tokens=1))


def test_a_prompt_in_two_chunks_is_its_own():
    found = ttft_breakdown(attribute(cut((2.51, 2.6)), StepReading(StepLog(LONG))))
    assert found.seconds(Part.PREFILL) == pytest.approx(2.5)
    assert found.seconds(Part.PREFILL_OTHERS) is None


def test_its_steps_count_the_tokens_of_its_prompt():
    assert life_of(cut((2.51, 2.6)), readings_of({"w0": (StepLog(LONG),)})).prefill_tokens == 2379


def test_a_prompt_that_shared_a_step_with_another_cut_request_is_of_unknown_length():
    steps = (IDLE, prompt_step(2, 2.0, 2048), prompt_step(3, 2.5, 331, prompts=2, first_tokens=2))
    assert life_of(cut((2.51, 2.6)), readings_of({"w0": (StepLog(steps),)})).prefill_tokens is None


def test_a_request_that_left_in_the_step_of_its_prompt_did_not_wait_in_the_queue():
    """Its engine noticed at the end of the step, half a second later."""
    before = (IDLE, prompt_step(2, -2.9, 1), prompt_step(3, -0.9, 2048), make_step(4, -0.8, running=0))
    found = wait_so_far(
        attribute(cut(ended_s=1.5), StepReading(StepLog([*before, prompt_step(5, 2.0, 2048)])))
    )
    assert found.seconds(Part.PREFILL) == pytest.approx(1.5)
    assert not found.seconds(Part.ENGINE_QUEUE)


def test_the_step_that_ran_when_it_was_sent_is_anothers():
    """The other was cancelled too: its prompt went on into no step."""
    steps = (make_step(1, -1.0), prompt_step(2, 0.5, 2048), prompt_step(3, 2.5, 2048))
    found = wait_so_far(attribute(cut(ended_s=1.5), StepReading(StepLog(steps))))
    assert found.seconds(Part.ENGINE_QUEUE) == pytest.approx(0.5)
    assert found.seconds(Part.PREFILL) == pytest.approx(1.0)


def test_a_request_waits_for_the_prompts_of_those_that_waited_before_it():
    """Two wait when it is sent, and one is taken in per step."""
    steps = [make_step(1, -0.1, running=9, waiting=2)]
    steps += [
        prompt_step(2 + index, 1.0 + index, 500, first_tokens=1, running=9, waiting=2) for index in range(4)
    ]
    found = wait_so_far(attribute(cut(ended_s=3.5), StepReading(StepLog(steps))))
    assert found.seconds(Part.PREFILL) == pytest.approx(0.5)
    still_waits = wait_so_far(attribute(cut(ended_s=1.9), StepReading(StepLog(steps))))
    assert still_waits.seconds(Part.PREFILL) is None


def test_the_tokens_of_another_prompt_in_its_step_are_the_others():
    """300 of 400 tokens are of a request whose end is recorded."""
    other = make_finished("other", prompt_tokens=300, prefill_s=0.4, decode_s=0.2, e2e_s=0.6)
    steps = [make_step(1, 0.0, running=2, decode=0), prompt_step(2, 0.4, 400, prompts=2, first_tokens=2)]
    steps += [make_step(3, 0.5), make_step(4, 0.6, finished=[other])]
    found = ttft_breakdown(attribute(cut((0.4, 0.5)), StepReading(StepLog(steps))))
    assert found.seconds(Part.PREFILL) == pytest.approx(0.1)
    assert found.seconds(Part.PREFILL_OTHERS) == pytest.approx(0.3)


def test_what_another_prompt_had_in_steps_of_its_own_is_not_in_the_shared_one():
    """2,048 of its 2,374 tokens were: of 341 in the shared step, 15 are of the request that was cut off."""
    other = make_finished("other", prompt_tokens=2374, prefill_s=2.5, decode_s=0.2, e2e_s=2.7)
    steps = [
        make_step(1, 0.0),
        prompt_step(2, 2.0, 2048),
        prompt_step(3, 2.5, 341, prompts=2, first_tokens=2),
    ]
    steps += [make_step(4, 2.6), make_step(5, 2.7, finished=[other])]
    assert life_of(cut((2.51, 2.6), sent_s=1.0), readings_of({"w0": (StepLog(steps),)})).prefill_tokens == 15


def test_a_first_prompt_of_its_length_after_idleness_is_no_pause():
    """Nothing like it is recorded, so nothing says that two seconds are too long for it."""
    decode = [make_step(10 + index, 3.0 + 0.06 * index) for index in range(9)]
    reading = StepReading(StepLog([IDLE, prompt_step(2, 2.0, 2048), *decode]))
    assert reading.split(reading.log.steps[1], EPOCH_S).paused_s == 0.0
