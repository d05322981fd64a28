"""Which requests' traces are kept is decided when they have ended."""

from __future__ import annotations

import pytest

from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome
from phasewise.core.trace_context import TraceContext, TraceLoss
from phasewise.gateway.records.traces import TraceSink
from tests.builders import EPOCH_S, make_timeline

ID = "0123456789abcdef" * 2
SLOS = {"default": Slo(1.0, 0.2), "batch": Slo(60.0, 5.0)}
SLOW = (2.0, 2.1, 2.2)


class Sent:
    """A TraceExporter that keeps what it is given."""

    def __init__(self):
        self.spans, self.dropped = [], []

    def send(self, _timeline, spans):
        self.spans.append(spans)

    def drop(self, reason):
        self.dropped.append(reason)


def sent_of(*timelines, slow_per_s=100):
    exporter = Sent()
    sink = TraceSink(exporter, slow_per_s, SLOS.__getitem__, lambda: {"m"})
    for timeline in timelines:
        sink.record(timeline)
    return exporter


def traced(content_times_s=(0.5, 0.6, 0.7), *, sampled=False, spans=True, **fields):
    trace = TraceContext(ID, None, int(sampled), spans)
    return make_timeline(content_times_s, trace=trace, request_id=ID, **fields)


def test_of_requests_that_went_well_the_sampled_are_kept():
    assert not sent_of(traced()).spans
    assert sent_of(traced(sampled=True)).spans


@pytest.mark.parametrize(
    "timeline",
    [
        traced(SLOW),
        traced((0.5, 1.5, 2.5)),
        traced((), outcome=Outcome.FAILED, reason="all_attempts_failed"),
        traced((), outcome=Outcome.REJECTED, reason="queue_full", attempts=()),
        traced((), outcome=Outcome.CANCELLED, reason="client_left"),
        traced((), outcome=Outcome.FAILED, generates=False),
    ],
    ids=["late", "slow stream", "failed", "rejected by us", "given up", "failed embedding"],
)
def test_slow_and_failed_requests_are_kept_though_not_sampled(timeline):
    (spans,) = sent_of(timeline).spans
    assert spans[0].attributes["phasewise.slo.met"] is False


@pytest.mark.parametrize(
    "timeline",
    [
        traced(SLOW, slo_class="batch"),
        traced((), outcome=Outcome.REJECTED, reason="engine_4xx"),
        traced((), generates=False),
        traced(SLOW, spans=False),
        make_timeline(SLOW),
    ],
    ids=["within its class", "the client's mistake", "embedding", "only passed on", "no trace"],
)
def test_others_are_not(timeline):
    assert not sent_of(timeline).spans


def test_in_an_overload_a_bounded_number_per_second_is_kept_and_the_rest_counted():
    at_once = [traced(SLOW) for _ in range(5)]
    later = traced(SLOW, started_unix_s=EPOCH_S + 1.0)
    exporter = sent_of(*at_once, later, slow_per_s=2)
    assert len(exporter.spans) == 3
    assert exporter.dropped == [TraceLoss.RATE_LIMITED] * 3


def test_the_bound_does_not_concern_sampled_requests():
    assert len(sent_of(*[traced(SLOW, sampled=True)] * 3, slow_per_s=0).spans) == 3


def test_a_model_that_no_worker_serves_has_no_name():
    (spans,) = sent_of(traced(sampled=True, model="my secret prompt")).spans
    assert spans[0].name == "chat none"
    assert "secret" not in str(spans)
