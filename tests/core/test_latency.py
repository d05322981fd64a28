"""The definitions hold for any timeline, and what is undefined stays undefined."""

import math

import pytest
from hypothesis import given

from phasewise.core.latency import (
    chunk_gaps_s,
    e2e_s,
    fitted,
    goodput,
    meets,
    stalls,
    tpot_s,
    ttft_breakdown,
    ttft_s,
)
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Part, Source
from tests.builders import make_attempt, make_span, make_timeline
from tests.strategies import timelines


@given(timelines)
def test_parts_plus_unexplained_equal_ttft(timeline):
    found = ttft_breakdown(timeline)
    if not timeline.content_times_s:
        assert found is None
        return
    total = sum(entry.seconds for entry in found.parts) + found.unexplained_s
    assert math.isclose(total, found.ttft_s, rel_tol=1e-9, abs_tol=1e-6)


@given(timelines)
def test_nothing_undefined_turns_into_zero(timeline):
    if not timeline.content_times_s:
        assert ttft_s(timeline) is None
    if timeline.outcome is not Outcome.SUCCEEDED:
        assert e2e_s(timeline) is None
        assert tpot_s(timeline) is None
    if timeline.output_tokens in {None, 0, 1} or len(timeline.content_times_s) < 2:
        assert tpot_s(timeline) is None


@given(timelines)
def test_e2e_is_ttft_plus_the_other_tokens_at_tpot(timeline):
    per_token = tpot_s(timeline)
    if per_token is None:
        return
    rebuilt = ttft_s(timeline) + (timeline.output_tokens - 1) * per_token
    assert math.isclose(rebuilt, e2e_s(timeline), rel_tol=1e-9, abs_tol=1e-9)


def test_worked_example_400_ms_and_199_tokens_of_25_ms():
    times = tuple(0.4 + 0.025 * index for index in range(200))
    timeline = make_timeline(times)
    assert ttft_s(timeline) == pytest.approx(0.4)
    assert tpot_s(timeline) == pytest.approx(0.025)
    assert e2e_s(timeline) == pytest.approx(5.375)


def test_a_last_token_without_text_counts_to_the_end():
    """The end of the text is a token too; its chunk carries only the reason to finish."""
    timeline = make_timeline((0.5, 0.6), output_tokens=3, finished_s=0.7)
    assert e2e_s(timeline) == pytest.approx(0.7)
    assert tpot_s(timeline) == pytest.approx(0.1)


def test_an_answer_never_ends_before_its_content():
    timeline = make_timeline((0.5, 0.6), output_tokens=2, finished_s=0.1)
    assert e2e_s(timeline) == 0.6
    assert tpot_s(timeline) == pytest.approx(0.1)


def test_several_choices_have_no_time_per_token():
    assert tpot_s(make_timeline((0.5, 0.6, 0.7), choices=2)) is None


def test_tokens_and_chunks_are_counted_apart():
    """Two tokens in each of three chunks: TPOT divides by tokens, gaps lie between chunks."""
    timeline = make_timeline((1.0, 1.2, 1.4), output_tokens=6)
    assert tpot_s(timeline) == pytest.approx(0.4 / 5)
    assert chunk_gaps_s(timeline) == pytest.approx((0.2, 0.2))


def test_a_span_within_another_is_counted_once():
    """The decode side's queue time contains the transfer."""
    spans = (
        make_span(Part.ENGINE_QUEUE, 0.3),
        make_span(Part.KV_TRANSFER, 0.2, Source.STEP_RECORD, within=Part.ENGINE_QUEUE),
    )
    found = ttft_breakdown(make_timeline((0.5, 0.6), engine_spans=spans))
    assert found.seconds(Part.ENGINE_QUEUE) == pytest.approx(0.1)
    assert found.seconds(Part.KV_TRANSFER) == pytest.approx(0.2)
    assert found.unexplained_s == pytest.approx(0.2)


def test_spans_of_failed_attempts_do_not_count_as_the_serving_ones():
    failed = make_attempt([make_span(Part.PREFILL, 9.0)], outcome=Outcome.FAILED)
    served = make_attempt([make_span(Part.PREFILL, 0.2)])
    found = ttft_breakdown(make_timeline((0.5,), attempts=(failed, served)))
    assert found.seconds(Part.PREFILL) == pytest.approx(0.2)


def test_a_part_nobody_saw_is_unknown_not_zero():
    found = ttft_breakdown(make_timeline((0.5,)))
    assert found.seconds(Part.PREFILL) is None
    assert found.unexplained_s == pytest.approx(0.5)


def test_a_gap_many_times_the_median_is_a_stall():
    timeline = make_timeline((0.1, 0.2, 0.3, 0.4, 2.4, 2.5, 2.6))
    (stall,) = stalls(timeline)
    assert stall.start_s == pytest.approx(0.4)
    assert stall.duration_s == pytest.approx(2.0)
    assert stall.excess_s == pytest.approx(1.9)


def test_a_steady_stream_has_no_stalls():
    assert stalls(make_timeline(tuple(0.1 * index for index in range(1, 50)))) == ()


def test_too_short_a_stream_has_no_stalls():
    assert stalls(make_timeline((0.1, 0.2, 3.0))) == ()


def test_goodput_counts_over_all_that_were_offered():
    slo = Slo(ttft_s=1.0, tpot_s=0.2)
    good = make_timeline((0.5, 0.6, 0.7))
    late = make_timeline((1.5, 1.6, 1.7))
    slow = make_timeline((0.5, 1.5, 2.5))
    failed = make_timeline((), outcome=Outcome.FAILED)
    found = goodput([good, late, slow, failed], slo)
    assert (found.met, found.offered) == (1, 4)
    assert found.share == pytest.approx(0.25)


def test_one_token_is_judged_by_ttft_alone():
    assert meets(make_timeline((0.5,)), Slo(ttft_s=1.0, tpot_s=0.001))


def test_a_reply_that_was_not_streamed_is_judged_by_its_whole_length():
    """Ten tokens may take a second to start and nine times 0.1 s."""
    slo = Slo(ttft_s=1.0, tpot_s=0.1)
    assert meets(make_timeline((), ended_s=1.8, output_tokens=10), slo)
    assert not meets(make_timeline((), ended_s=2.0, output_tokens=10), slo)


def test_goodput_of_nothing_is_undefined():
    found = goodput([], Slo(1.0, 0.1))
    assert found.share is None


def test_the_end_of_the_gateways_wait_that_the_engine_measured_too_counts_once():
    """The gateway noted the sending late: 6.7 ms and 65.2 ms of prefill are more than a TTFT of 66.8 ms."""
    sent = make_span(Part.GATEWAY_WAIT, 0.0067, Source.GATEWAY_CLOCK)
    prefill = make_span(Part.PREFILL, 0.0652)
    found = ttft_breakdown(make_timeline((0.0668, 0.1), spans=[sent], engine_spans=[prefill]))
    assert found.seconds(Part.PREFILL) == pytest.approx(0.0652)
    assert found.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.0016)
    assert found.unexplained_s == pytest.approx(0.0)


def test_an_engine_that_reports_more_than_the_whole_ttft_is_not_corrected():
    found = ttft_breakdown(make_timeline((0.5, 0.6), engine_spans=[make_span(Part.PREFILL, 0.6)]))
    assert (found.seconds(Part.PREFILL), found.unexplained_s) == (pytest.approx(0.6), pytest.approx(-0.1))


def test_as_shown_parts_that_two_clocks_measured_add_up_and_nothing_is_negative():
    measured = ttft_breakdown(make_timeline((0.5, 0.6), engine_spans=[make_span(Part.PREFILL, 0.6)]))
    shown = fitted(measured)
    assert (shown.seconds(Part.PREFILL), shown.unexplained_s) == (pytest.approx(0.5), 0.0)
    assert fitted(shown) is shown
