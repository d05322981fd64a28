"""The spans of a finished timeline: every part with its source, and nothing that a client wrote."""

from __future__ import annotations

import pytest
from hypothesis import given

from phasewise.core.latency import ttft_breakdown
from phasewise.core.timeline import TTFT_PARTS, AttemptKind, Outcome, Part, Source
from phasewise.core.trace_context import SpanKind
from phasewise.gateway.records.traces import spans_of
from tests.builders import make_attempt, make_span, make_timeline
from tests.strategies import timelines

WAIT = make_span(Part.GATEWAY_WAIT, 0.02, Source.GATEWAY_CLOCK, start_s=0.0)
REPORTED = (make_span(Part.ENGINE_QUEUE, 0.1), make_span(Part.PREFILL, 0.3), make_span(Part.DECODE, 0.15))


def spans(timeline, **options):
    return spans_of(timeline, "chat", "m", **{"met": True, **options})


def named(found, name):
    return [it for it in found if it.name == name]


def one(found, name):
    (span,) = named(found, name)
    return span


def attempt_at(start_s, end_s, reported=(), **fields):
    return make_attempt(reported, started_s=start_s, ended_s=end_s, **fields)


def answered():
    """A stream: 20 ms in the gateway, 400 ms reported until the first token, which came at 500 ms."""
    attempt = attempt_at(0.01, 0.71, REPORTED)
    return make_timeline((0.5, 0.6, 0.7), spans=(WAIT,), attempts=(attempt,), ended_s=0.71, finished_s=0.7)


def test_a_stream_is_a_request_an_attempt_and_the_parts_of_both():
    found = spans(answered())
    assert [(it.name, it.parent) for it in found] == [
        ("chat m", None),
        ("attempt local", 0),
        ("gateway_wait", 0),
        ("engine_queue", 1),
        ("prefill", 1),
        ("unexplained", 1),
        ("decode", 1),
        ("unexplained", 1),
    ]
    assert [it.kind for it in found[:3]] == [SpanKind.SERVER, SpanKind.CLIENT, SpanKind.INTERNAL]


def test_parts_follow_one_another_and_what_no_clock_saw_is_between_them():
    found = spans(answered())
    laid = [(it.name, round(it.start_s, 6), round(it.end_s, 6)) for it in found[3:]]
    assert laid == [
        ("engine_queue", 0.02, 0.12),
        ("prefill", 0.12, 0.42),
        ("unexplained", 0.42, 0.5),
        ("decode", 0.5, 0.65),
        ("unexplained", 0.65, 0.7),
    ]


def test_every_part_names_the_clock_and_whether_its_start_was_observed():
    found = spans(answered())
    sources = {it.name: it.attributes["phasewise.source"] for it in found[2:]}
    assert sources == {
        "gateway_wait": "gateway_clock",
        "engine_queue": "engine_report",
        "prefill": "engine_report",
        "decode": "engine_report",
        "unexplained": "derived",
    }
    assert one(found, "gateway_wait").attributes["phasewise.start_observed"]
    assert not one(found, "prefill").attributes["phasewise.start_observed"]


def test_without_an_engines_report_its_time_is_unexplained_and_decode_is_the_gateways():
    attempt = attempt_at(0.01, 0.71)
    found = spans(make_timeline((0.5, 0.7), spans=(WAIT,), attempts=(attempt,), finished_s=0.7))
    waited, decode = one(found, "unexplained"), one(found, "decode")
    assert (waited.start_s, waited.end_s) == (0.02, 0.5)
    assert (decode.start_s, decode.end_s) == (0.5, 0.7)
    assert decode.attributes["phasewise.source"] == "gateway_clock"


def test_the_requests_attributes_are_those_of_the_conventions_and_of_vllms_own_spans():
    found = spans(answered())[0].attributes
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.model"] == "m"
    assert found["gen_ai.usage.input_tokens"] == 100
    assert found["gen_ai.usage.output_tokens"] == 3
    assert found["gen_ai.server.time_to_first_token"] == found["gen_ai.latency.time_to_first_token"] == 0.5
    assert found["gen_ai.server.time_per_output_token"] == pytest.approx(0.1)
    assert found["gen_ai.latency.e2e"] == 0.7
    assert found["gen_ai.latency.time_in_queue"] == 0.1
    assert found["gen_ai.latency.time_in_model_prefill"] == 0.3
    assert found["gen_ai.latency.time_in_model_decode"] == 0.15
    assert found["phasewise.ttft.unexplained"] == pytest.approx(0.08)
    assert found["phasewise.slo.met"] is True


def test_a_disaggregated_request_has_the_times_of_both_sides():
    prefill = attempt_at(0.01, 0.3, REPORTED[:2], kind=AttemptKind.PREFILL_SIDE, worker="p0")
    decode = attempt_at(
        0.31, 0.9, (make_span(Part.KV_TRANSFER, 0.05), REPORTED[2]), kind=AttemptKind.DECODE_SIDE, worker="d0"
    )
    between = make_span(Part.GATEWAY_WAIT, 0.02, Source.GATEWAY_CLOCK, start_s=0.3)
    found = spans(make_timeline((0.5, 0.6, 0.7), spans=(WAIT, between), attempts=(prefill, decode)))
    assert [it.name for it in found[1:3]] == ["attempt prefill_side", "attempt decode_side"]
    assert one(found, "kv_transfer").parent == 2
    assert one(found, "kv_transfer").start_s == pytest.approx(0.32)
    assert found[0].attributes["gen_ai.latency.time_in_queue"] == 0.1
    assert found[0].attributes["gen_ai.latency.time_in_model_decode"] == 0.15


def test_a_retried_request_shows_the_attempt_that_failed():
    failed = attempt_at(0.01, 0.1, outcome=Outcome.FAILED, worker="w1")
    earlier = make_span(
        Part.EARLIER_ATTEMPTS, 0.1, Source.GATEWAY_CLOCK, start_s=0.01, within=Part.GATEWAY_WAIT
    )
    wait = make_span(Part.GATEWAY_WAIT, 0.12, Source.GATEWAY_CLOCK, start_s=0.0)
    attempts = (failed, attempt_at(0.11, 0.71, REPORTED))
    found = spans(make_timeline(spans=(wait, earlier), attempts=attempts))
    assert (found[1].error, found[2].error, found[0].error) == ("failed", None, None)
    assert found[one(found, "earlier_attempts").parent].name == "gateway_wait"
    assert one(found, "prefill").parent == 2


@pytest.mark.parametrize(
    ("outcome", "reason", "error"),
    [
        (Outcome.FAILED, "all_attempts_failed", "all_attempts_failed"),
        (Outcome.TIMED_OUT, None, "timed_out"),
        (Outcome.REJECTED, "queue_full", "queue_full"),
        (Outcome.REJECTED, "engine_4xx", None),
        (Outcome.CANCELLED, "client_left", None),
        (Outcome.SUCCEEDED, None, None),
    ],
)
def test_what_the_client_did_is_no_error(outcome, reason, error):
    found = spans(make_timeline((), outcome=outcome, reason=reason, attempts=()))[0]
    assert found.error == error
    assert found.attributes.get("error.type") == error


def test_a_failed_attempts_note_stays_out():
    attempt = make_attempt(outcome=Outcome.FAILED, note="the engine said: my secret prompt")
    found = spans(make_timeline((), outcome=Outcome.FAILED, attempts=(attempt,), client_request_id="mine"))
    assert "secret" not in str(found)
    assert "mine" not in str(found)


@given(timelines)
def test_parents_come_first_and_unexplained_is_what_the_breakdown_says(timeline):
    found = spans(timeline)
    assert all(it.parent is None or it.parent < index for index, it in enumerate(found))
    assert all(it.end_s >= it.start_s for it in found[1 + len(timeline.attempts) :])
    parts = {it.name for it in found[1 + len(timeline.attempts) :]}
    assert parts <= {*TTFT_PARTS, Part.DECODE, "unexplained"}
    breakdown = ttft_breakdown(timeline)
    shown = found[0].attributes.get("phasewise.ttft.unexplained")
    assert shown == (None if breakdown is None else max(0.0, breakdown.unexplained_s))
