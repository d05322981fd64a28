"""The timing that a client gets of its own request is true, adds up, and is nothing but names and numbers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from phasewise.core.request import Endpoint
from phasewise.core.timeline import Outcome, Part, Source
from phasewise.gateway.api.pipeline import Arrival
from phasewise.gateway.records.server_timing import ASKS_FOR_TIMING, server_timing, timing_comment
from tests.builders import make_attempt, make_span, make_timeline
from tests.strategies import timelines

TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
"""A token of RFC 9110, which names and values of Server-Timing are made of."""
METRIC = re.compile(rf"{TOKEN};dur={TOKEN}")
COMMENT = re.compile(r": phasewise( [a-z0-9_]+_ms=-?\d+\.\d{3})+\n\n")


def waits(seconds, **fields):
    return make_span(Part.GATEWAY_WAIT, seconds, Source.GATEWAY_CLOCK, **fields)


ENGINE = (make_span(Part.ENGINE_QUEUE, 0.05), make_span(Part.PREFILL, 0.25), make_span(Part.DECODE, 0.5))


def header_of(timeline):
    serving = timeline.serving_attempt
    return server_timing(timeline.ended_s, timeline.spans + (serving.spans if serving else ()))


def header_ms(timeline):
    metrics = header_of(timeline).decode().split(", ")
    return {metric.partition(";")[0]: float(metric.partition("=")[2]) for metric in metrics}


def comment_ms(timeline):
    pairs = timing_comment(timeline).decode().split()[2:]
    return {pair.partition("_ms=")[0]: float(pair.partition("=")[2]) for pair in pairs}


def test_a_plain_reply_reports_its_parts_in_milliseconds_and_what_is_left_over():
    attempt = make_attempt(ENGINE, outcome=Outcome.UNFINISHED)
    timeline = make_timeline((), spans=[waits(0.1)], attempts=(attempt,), ended_s=1.0, streamed=False)
    assert header_of(timeline) == (
        b"total;dur=1000.000, gateway_wait;dur=100.000, engine_queue;dur=50.000, prefill;dur=250.000, "
        b"decode;dur=500.000, unexplained;dur=100.000"
    )


def test_a_plain_reply_of_an_engine_that_reports_nothing_leaves_its_time_unexplained():
    timeline = make_timeline((), spans=[waits(0.1)], ended_s=1.0, streamed=False)
    assert header_ms(timeline) == {"total": 1000.0, "gateway_wait": 100.0, "unexplained": 900.0}


def test_an_earlier_attempt_is_not_reported_twice():
    earlier = make_span(Part.EARLIER_ATTEMPTS, 0.3, Source.GATEWAY_CLOCK, within=Part.GATEWAY_WAIT)
    timeline = make_timeline((), spans=[waits(0.4), earlier], ended_s=1.0, streamed=False)
    reported = header_ms(timeline)
    assert reported["gateway_wait"] == pytest.approx(100.0)
    assert reported["earlier_attempts"] == pytest.approx(300.0)
    assert reported["unexplained"] == pytest.approx(600.0)


def test_a_stream_reports_ttft_by_part_and_the_pace_after_it():
    attempt = make_attempt(ENGINE, outcome=Outcome.UNFINISHED)
    timeline = make_timeline(
        (0.5, 0.6, 0.7), spans=[waits(0.1)], attempts=(attempt,), outcome=Outcome.UNFINISHED
    )
    assert timing_comment(timeline) == (
        b": phasewise ttft_ms=500.000 gateway_wait_ms=100.000 engine_queue_ms=50.000 prefill_ms=250.000 "
        b"unexplained_ms=100.000 tpot_ms=100.000 e2e_ms=700.000\n\n"
    )


def test_a_stream_of_one_token_has_no_pace():
    assert "tpot" not in comment_ms(make_timeline((0.5,)))


def test_a_stream_without_content_has_nothing_to_report():
    assert timing_comment(make_timeline(())) == b""


def test_nothing_left_over_is_a_plain_zero():
    timeline = make_timeline((), spans=[waits(1.0 + 1e-9)], ended_s=1.0, streamed=False)
    assert header_of(timeline).endswith(b"unexplained;dur=0.000")


def test_only_the_value_1_asks_for_the_comment():
    asked = [{ASKS_FOR_TIMING: value} for value in (b"1", b"0", b"", b"yes")]
    wants = [Arrival.of(Endpoint.CHAT, headers).wants_timing for headers in (*asked, {})]
    assert wants == [True] + [False] * 4


@given(timelines)
def test_the_header_is_valid_and_its_parts_add_up_whatever_the_timeline(timeline):
    metrics = header_of(timeline).decode().split(", ")
    assert all(METRIC.fullmatch(metric) for metric in metrics)
    reported = header_ms(timeline)
    total = reported.pop("total")
    assert sum(reported.values()) == pytest.approx(total, abs=0.001 * (len(reported) + 1))


@given(timelines)
def test_the_comment_is_one_event_of_names_and_numbers_whatever_the_timeline(timeline):
    comment = timing_comment(timeline).decode()
    assert COMMENT.fullmatch(comment) if timeline.content_times_s else comment == ""
