"""Every second of a stream is attributed to the right part."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.slo import Slo
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Outcome, Part
from phasewise.costs.fit.step import decoding
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.analysis.streams import stream_summary
from tests.benchmark.calibrate.builders import make_fit
from tests.builders import make_attempt, make_finished, make_span, make_step, make_timeline
from tests.diagnosis.virtual_traffic import COST, WAY_BACK_S, ask, play

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
FIT = make_fit(COST)


def ledger_of(traffic, fit=None):
    return stream_summary(traffic.timelines, SLO, readings_of(traffic.logs, fit)).ledger


def steady(count=4, output_tokens=60):
    return [ask(index, 0.01 * index, output_tokens=output_tokens) for index in range(count)]


requests = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=3),
        st.integers(min_value=1, max_value=3000),
        st.integers(min_value=1, max_value=40),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25)
@given(
    wanted=requests,
    known=st.booleans(),
    slowed=st.dictionaries(st.integers(0, 60), st.floats(0, 2)),
    blocked_s=st.none() | st.floats(0, 5),
    total_blocks=st.integers(min_value=70, max_value=120),
)
def test_the_ledger_adds_up_whatever_happened(wanted, known, slowed, blocked_s, total_blocks):
    fit = FIT if known else None
    asked = [ask(index, *each) for index, each in enumerate(wanted)]
    traffic = play(asked, fit=fit, slowed=slowed, total_blocks=total_blocks)
    timelines = [replace(it, client_blocked_s=blocked_s) for it in traffic.timelines]
    summary = stream_summary(timelines, SLO, readings_of(traffic.logs, fit))
    if summary is None or summary.ledger is None:
        return
    ledger = summary.ledger
    assert ledger.total_s == pytest.approx(summary.tpot_mean_s, abs=1e-9)
    assert min(ledger.step_s, ledger.prompts_s, ledger.preempted_s, ledger.paused_s) >= 0
    assert min(ledger.client_s, ledger.cold_s) >= 0
    if ledger.floor_s is not None:
        assert ledger.floor_s + ledger.batch_s + ledger.kv_read_s == pytest.approx(ledger.step_s)


def test_a_streams_steps_leave_nothing_unexplained():
    ledger = ledger_of(play(steady()), FIT)
    assert ledger.unexplained_s == pytest.approx(0.0, abs=1e-6)
    assert ledger.paused_s == ledger.preempted_s == ledger.client_s == ledger.cold_s == 0.0


def lasting(timeline, more_s):
    """The same stream, evenly so much longer than its engine took."""
    first_s, *_, last_s = timeline.content_times_s
    slower = 1 + more_s / (last_s - first_s)
    times = tuple(first_s + (at_s - first_s) * slower for at_s in timeline.content_times_s)
    return replace(timeline, content_times_s=times, ended_s=times[-1])


def test_streams_that_are_late_do_not_make_up_for_those_that_are_early():
    """One stream ends 1 s late, another 1 s early: nothing on average, a second for each."""
    traffic = play(steady(2))
    pair = [lasting(it, more_s) for it, more_s in zip(traffic.timelines, (1.0, -1.0), strict=True)]
    late, early = (stream_summary([it], SLO, readings_of(traffic.logs)) for it in pair)
    both = stream_summary(pair, SLO, readings_of(traffic.logs))
    assert both.unexplained_s == both.ledger.unexplained_s == pytest.approx(0.0, abs=1e-6)
    assert both.unexplained_abs_p50_s * 59 == pytest.approx(1.0, rel=0.01)
    assert late.unexplained_share_p50 == pytest.approx(late.unexplained_s / late.tpot_mean_s)
    assert early.unexplained_share_p50 == pytest.approx(-early.unexplained_s / early.tpot_mean_s)


def test_what_a_pause_took_is_no_unexplained():
    """The engine stood still for two seconds, and the ledger says so: nothing is left unexplained."""
    traffic = play(steady(1), slowed={30: 2.0})
    summary = stream_summary(traffic.timelines, SLO, readings_of(traffic.logs, FIT))
    assert summary.ledger.paused_s * 59 == pytest.approx(2.0, rel=0.01)
    assert summary.unexplained_s == pytest.approx(0.0, abs=1e-6)


def test_costs_report_floor_batch_and_kv_reads_apart():
    """Four streams of 100 + some 30 tokens: 40 ms floor, 4 ms for requests, 2 ms of reads."""
    ledger = ledger_of(play([ask(index, 0.0, output_tokens=60) for index in range(4)]), FIT)
    assert ledger.floor_s == pytest.approx(0.040, rel=0.01)
    assert ledger.batch_s == pytest.approx(0.004, rel=0.01)
    assert ledger.kv_read_s == pytest.approx(4 * 130 * 4e-6, rel=0.05)


@pytest.mark.parametrize(
    "fit", [None, make_fit(COST, seen=[decoding([100])])], ids=["no fit", "one batch size"]
)
def test_without_costs_of_several_batches_steps_are_not_distinguished(fit):
    ledger = ledger_of(play(steady()), fit)
    assert ledger.floor_s is ledger.batch_s is ledger.kv_read_s is None
    assert ledger.step_s == pytest.approx(0.046, rel=0.1)


@pytest.mark.parametrize("fit", [None, FIT], ids=["by usual steps", "by costs"])
def test_other_requests_prefill_is_what_their_steps_took_more(fit):
    """A stream of 60 tokens; a prompt of 1,000 comes in its midst and takes about 0.85 s of a step."""
    traffic = play([ask(0, 0.0, output_tokens=60), ask(1, 1.0, prompt_tokens=1000, output_tokens=1)], fit=fit)
    chunk = next(it for it in traffic.reports if it.work.prompt_tokens > 900)
    more_s = chunk.duration_s - COST(chunk.work.without_prompts())
    stream = [it for it in traffic.timelines if it.request_id == "r0"]
    ledger = stream_summary(stream, SLO, readings_of(traffic.logs, fit)).ledger
    assert ledger.prompts_s * 59 == pytest.approx(more_s, rel=0.02)


def test_a_step_that_took_many_times_its_work_paused():
    ledger = ledger_of(play(steady(1), slowed={30: 2.0}), FIT)
    assert ledger.paused_s * 59 == pytest.approx(2.0, rel=0.01)
    assert ledger.step_s * 59 == pytest.approx(59 * 0.0415, rel=0.03)


def test_a_long_prompt_is_no_pause():
    traffic = play([ask(0, 0.0, output_tokens=60), ask(1, 1.0, prompt_tokens=2000, output_tokens=1)])
    assert ledger_of(traffic, FIT).paused_s == 0.0


def test_first_steps_of_their_kind_are_cold_and_later_slow_ones_are_not():
    """The first decode step takes half a second more, as does one in the midst of the stream."""
    first = ledger_of(play(steady(1), slowed={1: 0.5}))
    later = ledger_of(play(steady(1), slowed={40: 0.5}))
    assert first.cold_s * 59 == pytest.approx(0.5, rel=0.01)
    assert first.paused_s == 0.0
    assert later.cold_s == 0.0
    assert later.paused_s * 59 == pytest.approx(0.5, rel=0.01)


def test_what_a_stream_lost_when_it_was_preempted_is_preemption():
    """Two long answers outgrow a cache of 64 blocks; the younger one waits until the older one is done."""
    asked = [ask(index, 0.0, prompt_tokens=3900, output_tokens=400) for index in range(2)]
    traffic = play(asked, total_blocks=64)
    (victim,) = [it for report in traffic.reports for it in report.step.finished if it.preemptions]
    (lost,) = [it for it in traffic.timelines if it.request_id == victim.request_id]
    (other,) = [it for it in traffic.timelines if it.request_id != victim.request_id]
    longest_s = max(after - before for before, after in pairwise(lost.content_times_s))
    ledger = stream_summary([lost], SLO, readings_of(traffic.logs)).ledger
    assert ledger.preempted_s * 399 == pytest.approx(longest_s, rel=0.05)
    assert stream_summary([other], SLO, readings_of(traffic.logs)).ledger.preempted_s == 0.0


def test_time_that_the_engine_was_done_and_the_client_read_is_the_clients():
    """The engine has all tokens after 2.4 s; the client takes the last one 10 s later."""
    traffic = play(steady(1))
    (timeline,) = traffic.timelines
    times = timeline.content_times_s
    slow = replace(
        timeline, content_times_s=(*times[:-1], times[-1] + 10), ended_s=times[-1] + 10, client_blocked_s=9.5
    )
    summary = stream_summary([slow], SLO, readings_of(traffic.logs))
    assert summary.ledger.client_s * 59 == pytest.approx(9.5)
    assert summary.ledger.unexplained_s * 59 == pytest.approx(0.5, abs=0.01)


def test_waiting_for_a_client_that_cost_nothing_is_not_counted():
    """The gateway waited while the engine was slower still: the stream was no longer for it."""
    traffic = play(steady(1))
    waited = [replace(it, client_blocked_s=1.0) for it in traffic.timelines]
    assert stream_summary(waited, SLO, readings_of(traffic.logs)).ledger.client_s == pytest.approx(
        0.0, abs=1e-6
    )


def test_without_a_record_the_engines_report_reports_the_step_and_the_client():
    timeline = make_timeline(
        (0.5, 0.6, 2.5), engine_spans=[make_span(Part.DECODE, 0.2)], client_blocked_s=1.7, output_tokens=3
    )
    summary = stream_summary([timeline], SLO, {})
    assert summary.step_timed == 0
    assert summary.ledger.step_s == pytest.approx(0.1)
    assert summary.ledger.client_s == pytest.approx(0.85)
    assert summary.ledger.unexplained_s == pytest.approx(0.05)


def test_an_engine_that_had_nothing_to_do_for_an_open_stream_stood_still():
    steps = [make_step(index, 0.1 * index, running=int(index != 10)) for index in range(1, 11)]
    log = StepLog([*steps, *(make_step(index, 4.0 + 0.1 * index) for index in range(11, 20))])
    times = tuple(step.step.ended_unix_s - steps[0].ended_unix_s + 0.1 for step in log.steps)
    ledger = stream_summary([make_timeline(times)], SLO, readings_of({"w0": (log,)})).ledger
    assert ledger.paused_s * 18 == pytest.approx(4.0, rel=0.01)
    assert ledger.unexplained_s == pytest.approx(0.0, abs=1e-9)


def test_a_stream_that_was_cancelled_counts_as_far_as_it_went():
    """One of two streams is slow and given up: leaving it out would halve the time per token."""
    quick = make_timeline(tuple(0.1 * index for index in range(1, 11)))
    slow = make_timeline(
        tuple(0.5 * index for index in range(1, 11)),
        request_id="r2",
        outcome=Outcome.CANCELLED,
        output_tokens=None,
        ended_s=5.0,
    )
    summary = stream_summary([quick, slow], SLO, {})
    assert summary.tpot_mean_s == pytest.approx(0.3)
    assert summary.slow == 1
    assert summary.broken_off == 1


def test_the_silence_in_which_a_reader_left_is_a_stall():
    left = make_timeline(
        tuple(0.05 * index for index in range(1, 11)), outcome=Outcome.CANCELLED, ended_s=20.5
    )
    summary = stream_summary([left], SLO, {})
    (found,) = summary.stalls
    assert found.stall.duration_s == pytest.approx(20.0)
    assert summary.lost_s == pytest.approx(19.95)


def test_a_stream_that_ended_as_it_should_has_no_silence():
    whole = make_timeline(tuple(0.05 * index for index in range(1, 11)), ended_s=20.5)
    assert stream_summary([whole], SLO, {}).stalls == ()


def test_contexts_that_the_record_does_not_report_are_taken_from_requests_that_ended():
    """Two tokens a step, as with drafts: nobody can be counted back, but floor and reads still show."""
    ended = make_finished("r1", prompt_tokens=1000, output_tokens=41, prefill_s=0.1, decode_s=2.0, e2e_s=2.1)
    steps = [make_step(0, 0.1, prompt=1000, decode=0)]
    steps += [make_step(index, 0.1 + 0.1 * index, decode=2, decode_requests=1) for index in range(1, 20)]
    log = StepLog([*steps, make_step(20, 2.1, decode=2, decode_requests=1, running=0, finished=[ended])])
    timeline = make_timeline(
        tuple(0.1 + 0.1 * index + WAY_BACK_S for index in range(21)),
        output_tokens=41,
        attempts=(make_attempt(engine_request_id="r1"),),
    )
    ledger = stream_summary([timeline], SLO, readings_of({"w0": (log,)}, FIT)).ledger
    assert ledger.step_s == pytest.approx(0.05)
    assert ledger.kv_read_s / ledger.floor_s == pytest.approx(1020 * 4e-6 / 0.040, rel=0.01)


def long_stream(tokens=200, step_s=0.15):
    """A stream that flowed long before anybody looked, and ended in the last of these steps."""
    ended = make_finished(output_tokens=tokens + 1, prefill_s=0.2, decode_s=tokens * step_s, e2e_s=40.0)
    steps = [make_step(seq, seq * step_s, decode_requests=1) for seq in range(tokens + 1)]
    steps[-1] = replace(steps[-1], finished=(ended,), running=0)
    timeline = make_timeline(tuple(step_s * index + 0.004 for index in range(tokens + 1)))
    return timeline, steps


def test_a_record_that_begins_in_the_middle_of_a_stream_begins_with_no_long_step():
    timeline, steps = long_stream()
    assert StepLog(steps).steps[0].duration_s == pytest.approx(0.2)
    late = StepLog(steps[100:])
    assert late.steps[0].duration_s is None
    assert stream_summary([timeline], SLO, readings_of({"w0": (late,)})).step_timed == 0


def test_only_streams_whose_steps_are_all_on_record_are_booked_by_them():
    timeline, steps = long_stream()
    fresh = make_timeline(
        tuple(15.004 + 0.15 * index for index in range(101)), attempts=(make_attempt(engine_request_id="r2"),)
    )
    summary = stream_summary([timeline, fresh], SLO, readings_of({"w0": (StepLog(steps[100:]),)}))
    assert summary.step_timed == 1
    assert summary.ledger.step_s == pytest.approx(0.15)
    assert summary.ledger.unexplained_s == pytest.approx(0.0, abs=1e-6)
