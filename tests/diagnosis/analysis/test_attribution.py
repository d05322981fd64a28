"""Steps explain prefills and stalls: whose tokens, which steps."""

import pytest

from phasewise.core.latency import ttft_breakdown
from phasewise.core.steps import StepLog, logs_by_rank
from phasewise.core.timeline import AttemptKind, Outcome, Part, Source
from phasewise.diagnosis.analysis.attribution import attribute, explained, reading_of, readings_of
from phasewise.diagnosis.analysis.stall_causes import StallCause, explain_stalls
from phasewise.diagnosis.analysis.step_reading import StepReading
from tests.builders import make_attempt, make_finished, make_span, make_step, make_timeline


def test_a_prefill_is_split_by_whose_tokens_its_steps_carried():
    """100 own prompt tokens and 300 of another prompt in one step of 0.4 s: a quarter of it is ours."""
    ended = make_finished(prompt_tokens=100, prefill_s=0.4, decode_s=0.2, e2e_s=0.6)
    log = StepLog(
        [
            make_step(1, 0.0, running=2, decode=0),
            make_step(2, 0.4, prompt=400, decode=0),
            make_step(3, 0.5),
            make_step(4, 0.6, finished=[ended]),
        ]
    )
    engine = [make_span(Part.ENGINE_QUEUE, 0.0), make_span(Part.PREFILL, 0.4), make_span(Part.DECODE, 0.2)]
    found = ttft_breakdown(
        attribute(make_timeline((0.41, 0.51, 0.61), engine_spans=engine), StepReading(log))
    )
    assert found.seconds(Part.PREFILL) == pytest.approx(0.1)
    assert found.seconds(Part.PREFILL_OTHERS) == pytest.approx(0.3)
    assert found.unexplained_s == pytest.approx(0.01)


def test_running_streams_take_an_ordinary_steps_time_of_a_shared_step():
    """A step of 0.4 s with 8 running streams, which take 0.1 s by themselves: 0.3 s are the prompt's."""
    ended = make_finished(prompt_tokens=100, prefill_s=0.4, decode_s=0.2, e2e_s=0.6)
    log = StepLog(
        [
            make_step(1, -0.1, running=9, decode=8),
            make_step(2, 0.0, running=9, decode=8),
            make_step(3, 0.4, prompt=100, decode=8),
            make_step(4, 0.5, decode=9),
            make_step(5, 0.6, decode=9, finished=[ended]),
        ]
    )
    found = ttft_breakdown(attribute(make_timeline((0.4, 0.5, 0.6)), StepReading(log)))
    assert found.seconds(Part.PREFILL) == pytest.approx(0.3)
    assert found.seconds(Part.PREFILL_OTHERS) == pytest.approx(0.1)


def test_a_prefill_of_a_millisecond_is_found_in_its_step():
    ended = make_finished(prompt_tokens=100, prefill_s=0.001, decode_s=0.002, e2e_s=0.003)
    steps = [make_step(1, 0.001, prompt=100, decode=0), make_step(2, 0.002)]
    log = StepLog([*steps, make_step(3, 0.003, finished=[ended])])
    found = ttft_breakdown(attribute(make_timeline((0.001, 0.002, 0.003)), StepReading(log)))
    (prefill,) = [entry for entry in found.parts if entry.part is Part.PREFILL]
    assert prefill.source is Source.STEP_RECORD
    assert prefill.seconds == pytest.approx(0.001, abs=1e-6)


def test_a_prefill_is_found_in_its_step_though_the_front_end_is_behind():
    """Counted back from its end, the first token came 20 ms before the step that made it was over."""
    ended = make_finished(prompt_tokens=100, prefill_s=0.38, decode_s=0.22, e2e_s=0.62)
    log = StepLog(
        [
            make_step(1, -0.1, prompt=50, decode=0, running=2),
            make_step(2, 0.02, prompt=70, decode=0, running=2),
            make_step(3, 0.40, prompt=100, decode=0),
            make_step(4, 0.5),
            make_step(5, 0.6, finished=[ended]),
        ]
    )
    found = ttft_breakdown(attribute(make_timeline((0.41, 0.51, 0.61)), StepReading(log)))
    assert found.seconds(Part.PREFILL) == pytest.approx(0.38)
    assert found.seconds(Part.PREFILL_OTHERS) is None


def test_a_prefill_whose_steps_are_not_all_recorded_keeps_the_engines_word():
    ended = make_finished(prompt_tokens=100, prefill_s=0.4, decode_s=0.2, e2e_s=0.6)
    log = StepLog([make_step(1, 0.4, prompt=None, decode=None), make_step(2, 0.6, finished=[ended])])
    found = ttft_breakdown(
        attribute(make_timeline((0.4,), engine_spans=[make_span(Part.PREFILL, 0.4)]), StepReading(log))
    )
    (prefill,) = [entry for entry in found.parts if entry.part is Part.PREFILL]
    assert prefill.source is Source.ENGINE_REPORT
    assert prefill.seconds == pytest.approx(0.4)


def test_ranks_of_one_engine_are_distinguished():
    """Two data-parallel ranks step at the same time; a request belongs to the one it ended on."""
    ended = make_finished(prompt_tokens=100, prefill_s=0.4, decode_s=0.2, e2e_s=0.6)
    ranks = logs_by_rank(
        [
            make_step(1, 0.4, prompt=900, decode=0, engine_index=0),
            make_step(2, 0.41, prompt=100, decode=0, engine_index=1),
            make_step(3, 0.59, engine_index=0),
            make_step(4, 0.6, engine_index=1, finished=[ended]),
        ]
    )
    timeline = make_timeline((0.4, 0.5, 0.6))
    log = reading_of(timeline, readings_of({"w0": ranks})).log
    assert log is ranks[1]
    assert ttft_breakdown(attribute(timeline, StepReading(log))).seconds(Part.PREFILL_OTHERS) is None


def test_a_prefill_alone_in_its_steps_is_all_its_own():
    ended = make_finished(prompt_tokens=100, prefill_s=0.4, decode_s=0.2, e2e_s=0.6)
    log = StepLog([make_step(1, 0.4, prompt=100, decode=0), make_step(2, 0.6, finished=[ended])])
    found = ttft_breakdown(attribute(make_timeline((0.4, 0.5, 0.6)), StepReading(log)))
    assert found.seconds(Part.PREFILL) == pytest.approx(0.4)
    assert found.seconds(Part.PREFILL_OTHERS) is None


def test_waiting_for_the_running_step_is_seen():
    """The request reaches the engine 0.1 s into a step of 0.5 s and is taken in when that ends."""
    ended = make_finished(queue_s=0.0, prefill_s=0.3, decode_s=0.1, e2e_s=0.8)
    log = StepLog(
        [
            make_step(1, -0.1, running=1),
            make_step(2, 0.4, running=2, decode=1),
            make_step(3, 0.7, prompt=100, decode=1),
            make_step(4, 0.8, finished=[ended]),
        ]
    )
    found = ttft_breakdown(attribute(make_timeline((0.7, 0.75, 0.8)), StepReading(log)))
    assert found.seconds(Part.STEP_IN_FLIGHT) == pytest.approx(0.4)
    assert abs(found.unexplained_s) < 0.01


def test_a_step_that_began_while_the_front_end_had_the_request_is_waited_for_too():
    ended = make_finished(queue_s=0.0, prefill_s=0.3, decode_s=0.1, e2e_s=0.8)
    log = StepLog(
        [
            make_step(1, 0.05, running=1),
            make_step(2, 0.4, running=2, decode=1),
            make_step(3, 0.7, prompt=100, decode=1),
            make_step(4, 0.8, finished=[ended]),
        ]
    )
    found = ttft_breakdown(attribute(make_timeline((0.7, 0.75, 0.8)), StepReading(log)))
    assert found.seconds(Part.STEP_IN_FLIGHT) == pytest.approx(0.35)


def test_a_step_that_was_over_long_before_the_engine_got_the_request_is_not_waited_for():
    """The front end took 0.4 s; the step at its arrival ended after 0.1 s."""
    ended = make_finished(queue_s=0.0, prefill_s=0.3, decode_s=0.1, e2e_s=0.8)
    log = StepLog(
        [
            make_step(1, -0.1, running=1),
            make_step(2, 0.1, running=0, decode=1),
            make_step(3, 0.7, prompt=100, decode=0),
            make_step(4, 0.8, finished=[ended]),
        ]
    )
    assert (
        ttft_breakdown(attribute(make_timeline((0.7, 0.75, 0.8)), StepReading(log))).seconds(
            Part.STEP_IN_FLIGHT
        )
        is None
    )


def test_without_engine_timings_the_record_stands_in():
    ended = make_finished(queue_s=0.1, prefill_s=0.3, decode_s=0.2, e2e_s=0.6)
    log = StepLog([make_step(1, 0.4, prompt=100, decode=0), make_step(2, 0.6, finished=[ended])])
    timeline = attribute(
        make_timeline((0.4, 0.5, 0.6), prompt_tokens=None, cached_tokens=None), StepReading(log)
    )
    assert timeline.prompt_tokens == 100
    sources = {span.source for span in timeline.serving_attempt.spans}
    assert sources == {Source.STEP_RECORD}


def test_attributing_twice_changes_nothing():
    ended = make_finished(prompt_tokens=100, prefill_s=0.4, decode_s=0.2, e2e_s=0.6)
    log = StepLog([make_step(1, 0.4, prompt=300), make_step(2, 0.6, finished=[ended])])
    once = attribute(make_timeline((0.4, 0.5, 0.6)), StepReading(log))
    twice = attribute(once, StepReading(log))
    assert ttft_breakdown(twice).parts == ttft_breakdown(once).parts


def test_a_request_the_engine_does_not_know_is_left_as_it_is():
    timeline = make_timeline()
    assert attribute(timeline, StepReading(StepLog([make_step(1, 0.4)]))) is timeline


def test_a_request_that_never_reached_a_phase_adds_nothing():
    aborted = make_finished(prefill_s=float("nan"), decode_s=float("nan"))
    timeline = make_timeline()
    assert attribute(timeline, StepReading(StepLog([make_step(1, 0.4, finished=[aborted])]))) is timeline


def stalled_stream():
    """Tokens every 0.1 s, then nothing from 0.5 to 3.2 s."""
    return make_timeline((0.1, 0.2, 0.3, 0.4, 0.5, 3.2, 3.3, 3.4))


def log_around_the_stall(**during):
    quiet = [make_step(index, 0.1 * index) for index in range(1, 6)]
    after = [make_step(index + 1, 2.6 + 0.1 * index) for index in range(7, 9)]
    return StepLog([*quiet, make_step(6, 3.2, **during), *after])


def test_a_stall_is_laid_to_the_step_that_carried_a_prompt():
    (found,) = explain_stalls(stalled_stream(), StepReading(log_around_the_stall(prompt=2047, decode=1)))
    assert found.cause is StallCause.PREFILL_CHUNK
    assert [timed.step.seq for timed in found.steps] == [6]
    assert found.steps[0].duration_s == pytest.approx(2.7)


def test_a_stall_with_a_preemption_is_laid_to_it():
    (found,) = explain_stalls(stalled_stream(), StepReading(log_around_the_stall(preempted=1)))
    assert found.cause is StallCause.PREEMPTION


def test_a_stall_in_a_plain_step_that_took_many_times_its_like_is_a_pause():
    (found,) = explain_stalls(stalled_stream(), StepReading(log_around_the_stall()))
    assert found.cause is StallCause.PAUSE


def test_a_stall_in_a_plain_step_whose_like_nobody_saw_is_a_slow_step():
    """A hundred streams more than in any other step: how long that takes cannot be determined."""
    (found,) = explain_stalls(stalled_stream(), StepReading(log_around_the_stall(decode=100)))
    assert found.cause is StallCause.SLOW_STEP


def test_a_stall_while_the_engine_kept_its_pace_is_no_steps_fault():
    log = StepLog([make_step(index, 0.1 * index) for index in range(1, 40)])
    (found,) = explain_stalls(stalled_stream(), StepReading(log))
    assert found.cause is StallCause.STEPS_WENT_ON


def test_a_stall_while_no_step_ended_finds_the_engine_idle():
    log = StepLog([make_step(1, 0.4, running=0), make_step(2, 9.0)])
    (found,) = explain_stalls(stalled_stream(), StepReading(log))
    assert found.cause is StallCause.ENGINE_IDLE


def test_a_stall_outside_the_record_is_unknown():
    (found,) = explain_stalls(stalled_stream(), None)
    assert found.cause is StallCause.UNKNOWN


@pytest.mark.parametrize("reported", [True, False], ids=["timed by the engine", "known by steps alone"])
def test_both_sides_of_a_kv_transfer_are_explained_by_their_own_engines_steps(reported):
    """A prefill of 0.4 s, mostly another's; then 0.1 s of KV transfer and a first step of 0.05 s."""
    read = make_finished(prompt_tokens=100, prefill_s=0.4, decode_s=0.0, e2e_s=0.4, output_tokens=1)
    wrote = make_finished(prompt_tokens=100, queue_s=0.1, prefill_s=0.05, decode_s=0.1, e2e_s=0.25)
    steps = [make_step(1, 0.0, running=2, decode=0), make_step(2, 0.4, prompt=400, decode=0, finished=[read])]
    logs = {
        "p": (StepLog(steps),),
        "d": (StepLog([make_step(1, 0.55), make_step(2, 0.65, finished=[wrote])]),),
    }
    parts = (make_span(Part.KV_TRANSFER, 0.1), make_span(Part.PREFILL, 0.05)) if reported else ()
    prefill = make_attempt(
        [make_span(Part.PREFILL, 0.4)] if reported else (), worker="p", kind=AttemptKind.PREFILL_SIDE
    )
    decode = make_attempt(parts, worker="d", kind=AttemptKind.DECODE_SIDE)
    (timeline,) = explained([make_timeline((0.56, 0.66), attempts=(prefill, decode))], readings_of(logs))
    found = ttft_breakdown(timeline)
    assert found.seconds(Part.KV_TRANSFER) == pytest.approx(0.1)
    assert found.seconds(Part.PREFILL) == pytest.approx(0.1 + 0.05)
    assert found.seconds(Part.PREFILL_OTHERS) == pytest.approx(0.3)
    assert Part.DECODE not in {span.part for span in timeline.prefill_attempt.spans}
    assert not found.seconds(Part.ENGINE_QUEUE)


def test_an_answer_that_broke_off_and_went_on_elsewhere_has_the_parts_of_its_first_engine():
    """The step of 0.4 s gave it its first token; its worker timed out later, so that no end is on record."""
    log = StepLog([make_step(1, -0.1, decode=0), make_step(2, 0.4, prompt=100, prompt_requests=1, decode=0)])
    begun = make_attempt(outcome=Outcome.TIMED_OUT)
    resumed = make_attempt(worker="w1", kind=AttemptKind.RESUMED)
    found = ttft_breakdown(
        attribute(make_timeline((0.41, 0.5, 9.0), attempts=(begun, resumed)), StepReading(log))
    )
    assert found.seconds(Part.PREFILL) == pytest.approx(0.4)
    assert found.unexplained_s == pytest.approx(0.0, abs=1e-6)


def test_an_attempt_that_failed_without_content_is_not_estimated():
    log = StepLog([make_step(1, 0.1), make_step(2, 0.4, prompt=100, decode=0)])
    failed = make_timeline((), attempts=(make_attempt(outcome=Outcome.FAILED),), outcome=Outcome.FAILED)
    assert attribute(failed, StepReading(log)) is failed


def queued_before_a_slot(running, **fields):
    """A request with its first token after 3 s, whose engine reports a prefill of 0.2 s and no wait; steps
    with so many requests running until then.
    """
    steps = [make_step(seq, 0.2 * seq, running=count, **fields) for seq, count in enumerate(running, start=1)]
    prefill = make_span(Part.PREFILL, 0.2, source=Source.ENGINE_REPORT)
    timeline = make_timeline((3.0, 3.1, 3.2), engine_spans=(prefill,))
    worker = timeline.serving_attempt.worker.name
    (found,) = explained([timeline], readings_of({worker: (StepLog(steps),)}))
    return ttft_breakdown(found)


def test_what_an_engine_does_not_report_is_a_wait_for_a_slot_if_none_was_free():
    found = queued_before_a_slot([2] * 15)
    assert found.seconds(Part.ENGINE_QUEUE) == pytest.approx(2.8)
    assert found.unexplained_s == pytest.approx(0.0)


def test_with_free_slots_it_stays_unexplained():
    found = queued_before_a_slot([2, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    assert found.seconds(Part.ENGINE_QUEUE) is None
    assert found.unexplained_s == pytest.approx(2.8)


def test_a_request_that_the_record_does_not_name_waited_if_others_did():
    found = queued_before_a_slot([2] * 15, waiting=3)
    assert found.seconds(Part.ENGINE_QUEUE) == pytest.approx(2.8)


def test_where_waiting_requests_are_seen_nothing_is_added_to_a_wait_that_is_recorded():
    ended = make_finished(queue_s=1.0, prefill_s=0.2, decode_s=0.2, e2e_s=1.4)
    found = queued_before_a_slot([2] * 15, waiting=3, finished=[ended])
    assert found.seconds(Part.ENGINE_QUEUE) == pytest.approx(1.0)
