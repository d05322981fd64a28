"""A stall names what made it: whose prompt, which pause, or the reader himself."""

from dataclasses import replace

import pytest

from phasewise.core.slo import Slo
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.analysis.engine_load import step_shape_of
from phasewise.diagnosis.analysis.stall_causes import StallCause, explain_stalls
from phasewise.diagnosis.analysis.step_reading import StepReading, recomputed_tokens
from phasewise.diagnosis.analysis.streams import stream_summary
from tests.builders import EPOCH_S, make_finished, make_step, make_timeline
from tests.diagnosis.virtual_traffic import ask, play


def busy_engine(**shape):
    """Three streams; after a second, a prompt of 1,900 tokens and one of 100 come at once."""
    asked = [ask(index, 0.0, output_tokens=60) for index in range(3)]
    asked += [ask(8, 1.0, prompt_tokens=1900, output_tokens=2), ask(9, 1.0, output_tokens=2)]
    traffic = play(asked, **shape)
    streams = [it for it in traffic.timelines if it.output_tokens > 2]
    return [found for it in streams for found in explain_stalls(it, StepReading(traffic.log))], traffic


def test_a_stall_names_the_requests_whose_prompts_made_it_the_biggest_first():
    found, _ = busy_engine()
    assert len(found) == 3
    for each in found:
        assert each.cause is StallCause.PREFILL_CHUNK
        assert [(it.request_id, it.prompt_tokens) for it in each.guilty] == [("r8", 1900), ("r9", 100)]


def test_a_pause_in_a_step_with_a_small_prompt_is_not_the_prompts_fault():
    """Ten short prompts come one by one; in one of their steps the engine stands still for 3 s."""
    asked = [ask(0, 0.0, output_tokens=80)]
    asked += [ask(index, 0.2 * index, prompt_tokens=20, output_tokens=1) for index in range(1, 11)]
    before = play(asked)
    chunks = [it.step.seq for it in before.reports if it.work.prompt_tokens == 20]
    traffic = play(asked, slowed={chunks[6]: 3.0})
    (stream,) = [it for it in traffic.timelines if it.request_id == "r0"]
    (found,) = explain_stalls(stream, StepReading(traffic.log))
    assert found.cause is StallCause.PAUSE
    assert found.guilty == ()


def test_a_stall_in_the_first_step_of_its_kind_is_a_cold_one():
    """Short prompts come one by one beside a stream; the step of the first of them takes 3 s more."""
    asked = [ask(0, 0.0, output_tokens=90), ask(1, 0.3, prompt_tokens=20, output_tokens=1)]
    asked += [ask(index, 3.5 + 0.2 * index, prompt_tokens=20, output_tokens=1) for index in range(2, 10)]
    first = next(it.step.seq for it in play(asked).reports if it.work.prompt_tokens == 20)
    traffic = play(asked, slowed={first: 3.0})
    (stream,) = [it for it in traffic.timelines if it.request_id == "r0"]
    (found,) = explain_stalls(stream, StepReading(traffic.log))
    assert found.cause is StallCause.COLD_STEP


def test_drafts_are_not_taken_for_what_a_preempted_stream_computes_again():
    drafted = make_step(1, 0.1, decode=25 * 8, decode_requests=8)
    assert recomputed_tokens(drafted) == 0
    assert recomputed_tokens(replace(drafted, preempted=1)) == 24 * 8


def log_with_a_preemption(own_preemptions):
    ended = make_finished(output_tokens=8, decode_s=3.3, e2e_s=3.4, preemptions=own_preemptions)
    quiet = [make_step(index, 0.1 * index) for index in range(1, 6)]
    return StepLog(
        [*quiet, make_step(6, 3.2, prompt=900, preempted=1), make_step(7, 3.4, running=0, finished=[ended])]
    )


@pytest.mark.parametrize(
    ("own_preemptions", "cause"), [(1, StallCause.PREEMPTION), (0, StallCause.PREFILL_CHUNK)]
)
def test_anothers_preemption_is_not_the_streams_own(own_preemptions, cause):
    stream = make_timeline((0.1, 0.2, 0.3, 0.4, 0.5, 3.2, 3.3, 3.4))
    (found,) = explain_stalls(stream, StepReading(log_with_a_preemption(own_preemptions)))
    assert found.cause is cause


def test_a_step_that_computes_a_preempted_stream_again_is_no_pause_to_the_others():
    """vLLM counts what is computed again among the tokens of streams."""
    ended = make_finished(output_tokens=8, decode_s=3.3, e2e_s=3.4)
    quiet = [make_step(index, 0.1 * index, decode_requests=1) for index in range(1, 6)]
    again = make_step(6, 3.2, decode=2001, decode_requests=2, preempted=1)
    log = StepLog([*quiet, again, make_step(7, 3.4, running=0, finished=[ended])])
    stream = make_timeline((0.1, 0.2, 0.3, 0.4, 0.5, 3.2, 3.3, 3.4))
    (found,) = explain_stalls(stream, StepReading(log))
    assert found.cause is StallCause.PREEMPTION
    assert step_shape_of(log, (EPOCH_S, EPOCH_S + 9)).tokens_per_stream_step == pytest.approx(1.0)


def read_slowly(blocked_s):
    """The engine keeps its pace while nothing reaches the gateway's log for 2.7 s."""
    return make_timeline((0.1, 0.2, 0.3, 0.4, 0.5, 3.2, 3.3, 3.4), client_blocked_s=blocked_s)


def test_a_stall_while_the_gateway_waited_for_its_client_is_the_clients():
    log = StepLog([make_step(index, 0.1 * index) for index in range(1, 40)])
    (found,) = explain_stalls(read_slowly(2.5), StepReading(log))
    assert found.cause is StallCause.CLIENT
    (found,) = explain_stalls(read_slowly(2.5), None)
    assert found.cause is StallCause.CLIENT


def test_a_client_that_waited_a_moment_is_not_blamed_for_a_long_stall():
    log = StepLog([make_step(index, 0.1 * index) for index in range(1, 40)])
    (found,) = explain_stalls(read_slowly(0.4), StepReading(log))
    assert found.cause is StallCause.STEPS_WENT_ON


def test_a_slow_step_is_the_engines_even_if_the_client_was_slow_too():
    steps = [make_step(index, 0.1 * index) for index in range(1, 6)]
    log = StepLog([*steps, make_step(6, 3.2, prompt=2047), make_step(7, 3.3)])
    (found,) = explain_stalls(read_slowly(2.5), StepReading(log))
    assert found.cause is StallCause.PREFILL_CHUNK


def test_what_the_gateway_waited_covers_so_many_stalls_and_no_more():
    times = (0.1, 0.2, 0.3, 0.4, 0.5, 3.5, 3.6, 3.7, 5.7, 5.8)
    stream = make_timeline(times, client_blocked_s=3.0)
    causes = [found.cause for found in explain_stalls(stream, None)]
    assert causes == [StallCause.CLIENT, StallCause.UNKNOWN]


def test_an_engine_without_work_was_idle_until_the_next_request_came():
    steps = [make_step(index, 0.1 * index, running=int(index < 5)) for index in range(1, 6)]
    log = StepLog([*steps, make_step(6, 3.2), make_step(7, 3.3)])
    (found,) = explain_stalls(read_slowly(None), StepReading(log))
    assert found.cause is StallCause.ENGINE_IDLE


def test_the_silence_before_a_cancelled_streams_end_is_laid_to_its_step():
    _, traffic = busy_engine()
    (stream,) = [it for it in traffic.timelines if it.request_id == "r0"]
    long_step = max(traffic.log.steps, key=lambda timed: timed.duration_s or 0.0)
    left_s = long_step.step.ended_unix_s - stream.started_unix_s
    times = tuple(at_s for at_s in stream.content_times_s if at_s < left_s - 0.5)
    cut = replace(stream, content_times_s=times, outcome=Outcome.CANCELLED, ended_s=left_s)
    (found,) = explain_stalls(cut, StepReading(traffic.log))
    assert found.cause is StallCause.PREFILL_CHUNK


@pytest.mark.parametrize(
    ("recorded", "leaves", "cause"),
    [(100, 4, StallCause.ENGINE_IDLE), (100, 0, StallCause.UNKNOWN), (60, 4, StallCause.UNKNOWN)],
)
def test_an_engine_that_hangs_until_nobody_looks_any_more_stood_still(recorded, leaves, cause):
    """After the last of 100 steps it left work and did none; a record that ends earlier shows nothing."""
    steps = [make_step(seq, 0.05 * seq, decode=4, running=4) for seq in range(recorded)]
    steps[-1] = replace(steps[-1], running=leaves)
    hangs = make_timeline(
        tuple(0.05 * index + 0.004 for index in range(1, 100)), ended_s=20.0, outcome=Outcome.UNFINISHED
    )
    (found,) = explain_stalls(hangs, StepReading(StepLog(steps)))
    assert found.cause is cause
    readings = readings_of({"w0": (StepLog(steps),)})
    summary = stream_summary([hangs], Slo(ttft_s=1.0, tpot_s=0.1), readings)
    assert summary.gap_max_s == pytest.approx(20.0 - hangs.content_times_s[-1])
