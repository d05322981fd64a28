"""Spans reach a backend as OTLP, and a backend that is away costs nothing but its traces."""

from __future__ import annotations

import logging
import sys
import time

import pytest

from phasewise.clients import otlp_traces
from phasewise.clients.otlp_traces import OtlpTraces
from phasewise.core.errors import ConfigError
from phasewise.core.trace_context import SpanKind, TraceContext, TraceLoss, TraceSpan, span_id
from tests.builders import EPOCH_S, make_timeline
from tests.otlp_collector import attributes_of, running_collector

ID = "0123456789abcdef" * 2
PARENT = "00f067aa0ba902b7"
TIMELINE = make_timeline(request_id=ID, trace=TraceContext("a" * 32, PARENT, 0, spans=True))
SPANS = [
    TraceSpan("chat m", None, 0.0, 0.7, SpanKind.SERVER, {"gen_ai.request.model": "m"}, "queue_full"),
    TraceSpan("attempt local", 0, 0.1, 0.7, SpanKind.CLIENT),
    TraceSpan("prefill", 1, 0.1, 0.5, attributes={"seconds": 0.4, "reasons": ("stop",)}),
]


@pytest.fixture(autouse=True)
def sent_at_once(monkeypatch):
    monkeypatch.setattr(otlp_traces, "SENT_EVERY_S", 0.01)


def wait_until(check):
    deadline_s = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def sent(count=1):
    with running_collector() as (collector, url):
        traces = OtlpTraces(url)
        for _ in range(count):
            traces.send(TIMELINE, SPANS)
        traces.close()
        assert set(traces.dropped.values()) == {0}
    return collector


def test_spans_arrive_with_their_ids_times_and_attributes():
    request, attempt, prefill = sent().spans
    assert {it.trace_id.hex() for it in (request, attempt, prefill)} == {"a" * 32}
    ids = [f"{span_id(ID, number):016x}" for number in range(3)]
    assert [it.span_id.hex() for it in (request, attempt, prefill)] == ids
    assert [it.parent_span_id.hex() for it in (request, attempt, prefill)] == [PARENT, *ids[:2]]
    assert prefill.start_time_unix_nano == pytest.approx((EPOCH_S + 0.1) * 1e9, abs=1e3)
    assert prefill.end_time_unix_nano - prefill.start_time_unix_nano == pytest.approx(4e8, abs=1e3)
    assert attributes_of(prefill) == {"seconds": 0.4, "reasons": ["stop"]}
    assert (request.status.code, request.status.message) == (2, "queue_full")
    assert [it.kind for it in (request, attempt, prefill)] == [2, 3, 1]


def test_what_waits_is_sent_when_the_gateway_stops():
    assert len(sent(200).spans) == 600


def test_the_service_is_named_and_a_variable_names_it_otherwise(monkeypatch):
    assert sent().resources[0]["service.name"] == "phasewise-gateway"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge-7")
    assert sent().resources[0]["service.name"] == "edge-7"


def test_an_endpoint_without_a_path_gets_the_usual_one():
    with running_collector() as (collector, url):
        traces = OtlpTraces(url.removesuffix("/v1/traces"))
        traces.send(TIMELINE, SPANS)
        traces.close()
        assert len(collector.spans) == 3


def test_requests_that_a_backend_rejects_are_counted_and_said_once(caplog):
    caplog.set_level(logging.INFO)
    with running_collector() as (collector, url):
        collector.status = 400
        traces = OtlpTraces(url)
        for wanted in (1, 2):
            traces.send(TIMELINE, SPANS)
            wait_until(lambda wanted=wanted: traces.dropped[TraceLoss.NOT_EXPORTED] == wanted)
        collector.status = 200
        traces.send(TIMELINE, SPANS)
        wait_until(lambda: collector.spans)
        traces.close()
    said = [it.getMessage() for it in caplog.records]
    assert said == [f"traces are dropped: {url} does not accept them", f"traces are accepted again at {url}"]


def test_while_too_many_wait_whole_requests_are_dropped(monkeypatch):
    monkeypatch.setattr(otlp_traces, "MOST_QUEUED_SPANS", 64)
    monkeypatch.setattr(otlp_traces, "SPANS_PER_BATCH", 8)
    with running_collector() as (collector, url):
        collector.status = 503  # the SDK tries again for a while, so that the queue fills
        traces = OtlpTraces(url)
        for _ in range(30):
            traces.send(TIMELINE, SPANS)
        assert traces.dropped[TraceLoss.QUEUE_FULL] == 30 - 64 // 3
        traces.close(within_s=0.1)


def test_a_backend_that_is_away_holds_up_neither_sending_nor_the_end():
    traces = OtlpTraces("http://127.0.0.1:9/v1/traces")
    began_s = time.monotonic()
    for _ in range(100):
        traces.send(TIMELINE, SPANS)
    assert time.monotonic() - began_s < 1.0
    began_s = time.monotonic()
    traces.close(within_s=0.2)
    assert time.monotonic() - began_s < 3.0


def test_without_the_packages_an_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"gateway.traces is set.*phasewise\[otel\]"):
        OtlpTraces("http://127.0.0.1:9")
