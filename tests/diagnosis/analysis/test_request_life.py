"""One request's steps: those it waited for, those of its prompt, those of its stream, and who shared them."""

import pytest

from phasewise.core.steps import logs_by_rank
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.analysis.request_life import StepRole, even_shares, life_of
from tests.builders import make_finished, make_step, make_timeline

# A prompt of 6,100 tokens is read until 8.7 s, ours of 100 until 8.9 s, and both stream until 9.4 s.
OTHER = make_finished("chatcmpl-other", prompt_tokens=6100, prefill_s=8.8, decode_s=0.6, e2e_s=9.5)
OWN = make_finished(output_tokens=5, queue_s=0.0, prefill_s=0.2, decode_s=0.4, e2e_s=9.3)
STEPS = (
    make_step(1, -0.1, decode=0, running=1),
    make_step(2, 8.7, prompt=6100, decode=0, running=2),
    make_step(3, 8.9, prompt=100, decode=1, running=2),
    make_step(4, 9.0, decode=2, running=2),
    make_step(5, 9.1, decode=2, running=2),
    make_step(6, 9.2, decode=2, running=2),
    make_step(7, 9.3, decode=2, running=1, finished=[OWN, OTHER]),
)
TIMES_S = (8.9, 9.0, 9.1, 9.2, 9.3)


def life(steps=STEPS, times_s=TIMES_S, **fields):
    readings = readings_of({"w0": logs_by_rank(steps)})
    return life_of(make_timeline(times_s, **fields), readings)


def test_every_step_has_its_role_and_the_cache_grows_with_the_requests_own_tokens():
    found = life()
    roles = [step.role for step in found.steps]
    assert roles == [StepRole.IN_FLIGHT, StepRole.PREFILL, *[StepRole.DECODE] * 4]
    assert [step.own_tokens for step in found.steps] == [0, 100, 1, 1, 1, 1]
    assert [step.cached_tokens for step in found.steps] == [0, 100, 101, 102, 103, 104]
    assert found.steps[1].start_s == pytest.approx(8.7)


def test_the_prompt_in_the_step_that_it_waited_for_is_named():
    waited = life().of(StepRole.IN_FLIGHT)[0]
    assert [(it.request_id, it.prompt_tokens) for it in waited.others] == [("chatcmpl-other", 6100)]
    assert waited.other_prompt_tokens == 6100


def test_who_shared_its_steps_is_counted_by_phase():
    (fellow,) = life().fellows
    assert (fellow.request_id, fellow.prompt_tokens) == ("chatcmpl-other", 6100)
    assert fellow.decode_steps == 5
    assert fellow.prefill_steps == 0


def test_a_step_with_other_prompts_too_gives_the_request_its_share():
    steps = [*STEPS[:2], make_step(3, 8.9, prompt=400, decode=0, running=2), *STEPS[3:]]
    prefill = life(steps).of(StepRole.PREFILL)[0]
    assert prefill.own_tokens == 100
    assert prefill.other_prompt_tokens == 300


def test_the_parts_of_the_stream_add_up_to_its_time():
    stream = life().stream
    assert stream.explained_s + stream.unexplained_s == pytest.approx(0.4)
    assert stream.step_s == pytest.approx(0.4)


def test_without_a_record_the_stream_is_unexplained_and_there_are_no_steps():
    found = life_of(make_timeline(TIMES_S), {})
    assert (found.steps, found.fellows) == ((), ())
    assert found.stream.unexplained_s == pytest.approx(0.4)


def test_a_request_without_content_has_no_stream():
    assert life(times_s=()).stream is None


@pytest.mark.parametrize(
    ("tokens", "steps", "each"), [(4, 4, [1, 1, 1, 1]), (5, 2, [2, 3]), (0, 2, [0, 0]), (3, 0, [])]
)
def test_tokens_are_spread_over_steps(tokens, steps, each):
    assert even_shares(tokens, steps) == each
