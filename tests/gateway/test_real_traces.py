"""The spans of a real vLLM join the gateway's trace."""

from __future__ import annotations

import pytest

from phasewise.clients import otlp_traces
from tests.gateway.harness import eventually, request_id_of, running_gateway
from tests.otlp_collector import attributes_of, running_collector
from tests.real_engine import running_real_engine

pytestmark = pytest.mark.real


def named(spans, name):
    return [it for it in spans if it.name == name]


async def test_vllms_span_is_a_child_of_the_attempt_and_agrees_with_the_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(otlp_traces, "SENT_EVERY_S", 0.01)
    with (
        running_collector() as (collector, url),
        running_real_engine(
            tmp_path / "engine.log",
            *("--otlp-traces-endpoint", url),
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
            OTEL_BSP_SCHEDULE_DELAY="100",
        ) as engine,
    ):
        traces = {"endpoint": url, "sample": 0.0}
        async with running_gateway([engine], traces=traces) as gateway:
            body = {"model": engine.model, "stream": True, "max_tokens": 12, "ignore_eos": True}
            unsampled = await gateway.chat("a river", **body)
            parent = f"00-{'ab' * 16}-{'cd' * 8}-01".encode()
            reply = await gateway.chat("a lighthouse", headers=[(b"traceparent", parent)], **body)
            assert reply.status == unsampled.status == 200
            await eventually(lambda: named(collector.of_trace("ab" * 16), "llm_request"))
            await eventually(lambda: named(collector.of_trace("ab" * 16), "attempt local"))
        spans = collector.of_trace("ab" * 16)
        # The engine has recorded none of a request that was not sampled, not even in a trace of its own.
        assert len(named(collector.spans, "llm_request")) == 1
        assert not named(collector.of_trace(request_id_of(unsampled)), "llm_request")
    (own,), (attempt,) = named(spans, "llm_request"), named(spans, "attempt local")
    (request,) = named(spans, f"chat {engine.model}")
    assert own.parent_span_id == attempt.span_id
    assert attempt.parent_span_id == request.span_id
    assert request.parent_span_id.hex() == "cd" * 8
    theirs, ours = attributes_of(own), attributes_of(request)
    for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode"):
        assert ours[f"gen_ai.latency.{name}"] == pytest.approx(theirs[f"gen_ai.latency.{name}"], abs=0.002)
    assert ours["gen_ai.latency.time_to_first_token"] >= theirs["gen_ai.latency.time_to_first_token"]
    assert ours["gen_ai.usage.output_tokens"] == theirs["gen_ai.usage.completion_tokens"] == 12
