"""Traces through a gateway: clients' contexts reach engines, and finished requests reach a backend."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request

import pytest

from phasewise.clients import otlp_traces
from phasewise.core.trace_context import span_id
from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import (
    eventually,
    listening,
    request_id_of,
    running_gateway,
)
from tests.gateway.pairs import LONG_TEXT, running_pair
from tests.otlp_collector import attributes_of, running_collector, running_victoria_traces

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FROM_CLIENT = [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"tracestate", b"vendor=1")]
SECRET = "the launch code is 0000"


@pytest.fixture(autouse=True)
def sent_at_once(monkeypatch):
    monkeypatch.setattr(otlp_traces, "SENT_EVERY_S", 0.01)


@pytest.fixture
def collector():
    with running_collector() as (collector, url):
        collector.url = url
        yield collector


async def headers_at_the_engine(sent=(), **options):
    """The trace headers of each attempt, as a worker gets them; its first attempt fails."""
    heads = []

    async def answer(head, _body, writer):
        heads.append(head)
        body = b'{"choices":[]}'
        status = b"500 Oops" if len(heads) == 1 else b"200 OK"
        writer.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    async with listening(answer) as stub, running_gateway([stub], **options) as gateway:
        reply = await gateway.chat(headers=sent)
    found = [dict(re.findall(rb"(traceparent|tracestate): (.+)\r\n", head)) for head in heads]
    return request_id_of(reply), found


async def test_without_traces_an_engine_gets_the_clients_context_as_it_is():
    _, attempts = await headers_at_the_engine(FROM_CLIENT)
    assert attempts == [dict(FROM_CLIENT)] * 2


async def test_without_traces_and_context_an_engine_gets_none():
    _, attempts = await headers_at_the_engine()
    assert attempts == [{}, {}]


async def test_with_traces_every_attempt_is_a_span_of_its_own(collector):
    request_id, attempts = await headers_at_the_engine(FROM_CLIENT, traces={"endpoint": collector.url})
    parents = [f"00-{TRACE}-{span_id(request_id, number):016x}-01".encode() for number in (1, 2)]
    assert attempts == [{b"traceparent": it, b"tracestate": b"vendor=1"} for it in parents]


@pytest.mark.parametrize(("sample", "flags"), [(0.0, b"00"), (1.0, b"01")])
async def test_an_engine_is_told_whether_a_trace_that_begins_here_is_sampled(collector, sample, flags):
    traces = {"endpoint": collector.url, "sample": sample}
    request_id, attempts = await headers_at_the_engine(traces=traces)
    expected = b"00-%b-%016x-%b" % (request_id.encode(), span_id(request_id, 1), flags)
    assert attempts[0] == {b"traceparent": expected}


async def test_a_stream_becomes_a_trace_with_the_time_of_every_part(collector):
    traces = {"endpoint": collector.url, "sample": 1.0}
    async with running_engines(1) as engines, running_gateway(engines, traces=traces) as gateway:
        reply = await gateway.chat(SECRET, stream=True, max_tokens=20, ignore_eos=True)
        request_id = request_id_of(reply)
        spans = await eventually(lambda: collector.of_trace(request_id))
        record = await gateway.timeline(request_id)
    by_name = {it.name: it for it in spans}
    assert {"chat fake-model", "attempt local", "gateway_wait", "engine_queue", "prefill", "decode"} <= set(
        by_name
    )
    request = attributes_of(by_name["chat fake-model"])
    assert request["gen_ai.usage.output_tokens"] == record["out"] == 20
    assert request["gen_ai.server.time_to_first_token"] == pytest.approx(
        record["content"][0] * 1e-4, abs=1e-4
    )
    assert request["gen_ai.latency.time_in_model_prefill"] > 0
    assert record["trace"]["trace_id"] == request_id
    assert SECRET not in str(spans)


async def test_a_disaggregated_request_has_both_sides_in_its_trace(collector):
    traces = {"endpoint": collector.url, "sample": 1.0}
    async with running_pair(traces=traces) as pair:
        reply = await pair.gateway.chat(LONG_TEXT, stream=True)
        spans = await eventually(lambda: collector.of_trace(request_id_of(reply)))
    assert {"attempt prefill_side", "attempt decode_side", "kv_transfer"} <= {it.name for it in spans}


async def test_a_failed_request_is_kept_though_it_was_not_sampled(collector):
    traces = {"endpoint": collector.url, "sample": 0.0}
    async with running_engines(1) as engines, running_gateway(engines, traces=traces) as gateway:
        well = request_id_of(await gateway.chat())
        engines[0].inject("error", times=2)
        failed = request_id_of(await gateway.chat())
        spans = await eventually(lambda: collector.of_trace(failed))
    assert collector.of_trace(well) == []
    assert {it.status.message for it in spans if it.name.startswith("chat")} == {"all_attempts_failed"}


async def test_requests_under_way_when_it_stops_are_sent_too(collector):
    traces = {"endpoint": collector.url, "sample": 1.0}
    async with running_engines(1) as engines, running_gateway(engines, traces=traces) as gateway:
        ids = [request_id_of(await gateway.chat()) for _ in range(5)]
    assert all(collector.of_trace(it) for it in ids)


async def test_a_backend_that_is_away_is_counted_and_holds_up_nobody(collector):
    collector.status = 400
    traces = {"endpoint": collector.url, "sample": 1.0}

    async def dropped():
        text = (await gateway.fetch("GET", "/metrics")).body.decode()
        return float(re.search(r'phasewise_traces_dropped_total{reason="not_exported"} (\S+)', text)[1])

    async with running_engines(1) as engines, running_gateway(engines, traces=traces) as gateway:
        assert await dropped() == 0
        assert (await gateway.chat()).status == 200
        await eventually(dropped)


async def test_settings_of_traces_need_a_restart(collector):
    traces = {"endpoint": collector.url}
    async with running_engines(1) as engines, running_gateway(engines, traces=traces) as gateway:
        reply = await gateway.reload(traces={"endpoint": collector.url, "sample": 0.5})
    assert b"gateway.traces needs a restart" in reply.body


def jaegers(spans):
    return {it["operationName"]: it for it in spans}


def tags(span):
    return {it["key"]: it["value"] for it in span["tags"]}


async def trace_at(api, trace_id, *names):
    """The spans of a trace as Jaeger's API gives them, once those of these names are there.

    The backend shows spans of one request as it stores them, not all at once.
    """

    def ask():
        with urllib.request.urlopen(f"{api}/api/traces/{trace_id}", timeout=10) as reply:
            return [span for trace in json.load(reply)["data"] or () for span in trace["spans"]]

    async def found():
        spans = await asyncio.to_thread(ask)
        return spans if spans and jaegers(spans).keys() >= set(names) else None

    return await eventually(found)


async def test_a_real_backend_shows_the_trace(tmp_path):
    with running_victoria_traces(tmp_path) as (endpoint, api):
        traces = {"endpoint": endpoint, "sample": 1.0}
        async with running_engines(1) as engines, running_gateway(engines, traces=traces) as gateway:
            reply = await gateway.chat(stream=True, headers=FROM_CLIENT)
            spans = jaegers(await trace_at(api, TRACE, "chat fake-model", "attempt local", "prefill"))
    request, attempt = spans["chat fake-model"], spans["attempt local"]
    assert request["references"][0]["spanID"] == PARENT
    assert attempt["references"][0]["spanID"] == request["spanID"]
    assert spans["prefill"]["references"][0]["spanID"] == attempt["spanID"]
    assert tags(request)["gen_ai.request.id"] == request_id_of(reply)
    assert tags(spans["prefill"])["phasewise.source"] == "engine_report"
