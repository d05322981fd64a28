"""A request's trace follows its client's, and what engines are sent follows from both."""

from __future__ import annotations

import pytest

from phasewise.core.request import Endpoint
from phasewise.core.trace_context import engine_headers, span_id, trace_of

REQUEST_ID = "0123456789abcdef" + "8" + "0" * 15
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLIENTS = f"00-{TRACE}-{PARENT}-01".encode()


def trace(parent=None, sample=None, state=None, endpoint=Endpoint.CHAT, request_id=REQUEST_ID):
    headers = {b"traceparent": parent, b"tracestate": state}
    return trace_of(
        {name: it for name, it in headers.items() if it is not None}, request_id, endpoint, sample
    )


def test_without_tracing_a_clients_headers_are_passed_on_unchanged():
    passed = engine_headers(trace(CLIENTS, state=b"vendor=1,other=2"), REQUEST_ID, 1)
    assert passed == [(b"traceparent", CLIENTS), (b"tracestate", b"vendor=1,other=2")]


def test_without_tracing_a_request_without_headers_has_no_trace():
    assert trace() is None


def test_engines_continue_the_attempts_span_of_a_clients_trace():
    joined = trace(CLIENTS, sample=0.0)
    ((_, first),) = engine_headers(joined, REQUEST_ID, 1)
    ((_, second),) = engine_headers(joined, REQUEST_ID, 2)
    assert first == f"00-{TRACE}-{span_id(REQUEST_ID, 1):016x}-01".encode()
    assert first != second
    assert (joined.parent_id, joined.sampled) == (PARENT, True)


def test_a_client_that_does_not_sample_is_not_overruled():
    assert not trace(CLIENTS[:-1] + b"0", sample=1.0).sampled


def test_a_trace_that_begins_here_has_the_requests_id():
    began = trace(sample=1.0)
    assert (began.trace_id, began.parent_id, began.sampled) == (REQUEST_ID, None, True)


@pytest.mark.parametrize(("sample", "sampled"), [(0.0, False), (0.5, False), (0.51, True), (1.0, True)])
def test_the_share_is_taken_from_the_ids_random_digits(sample, sampled):
    assert trace(sample=sample).sampled is sampled
    ((_, sent),) = engine_headers(trace(sample=sample), REQUEST_ID, 1)
    assert sent.endswith(b"-01" if sampled else b"-00")


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        CLIENTS.upper(),
        CLIENTS[:-1],
        CLIENTS + b"-more",
        b"ff" + CLIENTS[2:],
        CLIENTS.replace(TRACE.encode(), b"0" * 32),
        CLIENTS.replace(PARENT.encode(), b"0" * 16),
        b" " + CLIENTS,
    ],
)
def test_an_invalid_parent_is_no_parent(wrong):
    assert trace(wrong) is None
    assert trace(wrong, sample=1.0).trace_id == REQUEST_ID


def test_a_later_version_may_have_more_fields():
    assert trace(b"01" + CLIENTS[2:] + b"-more").trace_id == TRACE


@pytest.mark.parametrize("state", [b"a=" + b"x" * 511, b"a=\x80", b"a=1\x0bb"])
def test_a_state_that_is_too_long_or_not_printable_is_dropped(state):
    assert trace(CLIENTS, state=state).state == ""


@pytest.mark.parametrize(
    ("endpoint", "operation"),
    [
        (Endpoint.MESSAGES, "chat"),
        (Endpoint.COMPLETIONS, "text_completion"),
        (Endpoint.EMBEDDINGS, "embeddings"),
    ],
)
def test_operations_have_opentelemetrys_names(endpoint, operation):
    assert trace(sample=0.0, endpoint=endpoint).operation == operation


def test_span_ids_are_distinct_and_never_zero():
    last = "0" * 16 + "f" * 16
    ids = [span_id(last, number) for number in (0, 1)]
    assert ids == [2**64 - 1, 1]
    assert len({span_id(REQUEST_ID, number) for number in range(100)}) == 100
