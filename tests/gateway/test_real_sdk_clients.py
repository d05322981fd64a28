"""OpenAI's and Anthropic's own clients in front of a real vLLM, as far as its model and flags allow."""

from __future__ import annotations

import pytest

from benchmarks.sdk_calls import CALLS, NEEDS_EMBEDDINGS, TURN
from phasewise.clients.http_client import Timeouts
from tests.gateway.harness import request_id_of, running_gateway
from tests.gateway.test_sdk_clients import clients_of

pytestmark = pytest.mark.real

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)
NEEDS_TOOL_PARSER = frozenset(call for call in CALLS if call.__name__.endswith("with_a_tool"))
"""The shared engine has no parser of calls; benchmarks/drop_in.py starts one that has."""
ANSWERED = [call for call in CALLS if call not in NEEDS_EMBEDDINGS | NEEDS_TOOL_PARSER]


@pytest.fixture
async def gateway(real_engine):
    async with running_gateway([real_engine], timeouts=PATIENT, poll_interval_s=1.0) as gateway:
        yield gateway


@pytest.mark.parametrize("call", ANSWERED, ids=lambda call: call.__name__)
async def test_a_call_of_a_vendors_client_works(gateway, real_engine, call):
    async with clients_of(gateway, model=real_engine.model) as clients:
        await call(clients)


async def test_a_response_has_the_engines_own_timings_and_counts(gateway, real_engine):
    body = {"model": real_engine.model, "input": "Tell me a story.", "max_output_tokens": 12, "stream": True}
    reply = await gateway.fetch("POST", "/v1/responses", {**body, "ignore_eos": True})
    timeline = await gateway.timeline(request_id_of(reply))
    assert (timeline["outcome"], timeline["out"], timeline["finish"]) == ("succeeded", 12, "length")
    assert timeline["attempts"][0]["engine_id"] == f"resp_{timeline['id']}"
    parts = {entry["part"]: entry["ms"] for entry in timeline["ttft"]["parts"]}
    assert {"engine_queue", "prefill"} <= set(parts)
    assert len(timeline["content"]) == 12


async def test_a_message_has_the_engines_own_counts(gateway, real_engine):
    body = {"model": real_engine.model, "messages": TURN, "max_tokens": 12, "stream": True}
    reply = await gateway.fetch("POST", "/v1/messages", body)
    timeline = await gateway.timeline(request_id_of(reply))
    assert timeline["outcome"] == "succeeded"
    assert timeline["attempts"][0]["engine_id"] == f"chatcmpl-{timeline['id']}"
    assert 0 < timeline["out"] <= 12
    assert timeline["in"] > 8
    # As many chunks as tokens, except those that are a part of a letter.
    assert 0 < len(timeline["content"]) <= timeline["out"]


HARMLESS_BUT_WRONG = [
    ("/v1/responses", {"input": []}),
    ("/v1/responses", {"input": 5}),
    ("/v1/responses", {"input": [{"role": "assistant", "content": []}]}),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}),
    ("/v1/responses", {"input": "x", "max_output_tokens": -1}),
    ("/v1/messages", {"messages": []}),
    ("/v1/messages", {"messages": [{"role": "user", "content": []}]}),
    ("/v1/messages", {"messages": TURN, "max_tokens": -1}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": "x"}]}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields"), HARMLESS_BUT_WRONG)
async def test_a_clients_mistake_is_a_4xx_and_no_fault_of_the_worker(gateway, real_engine, path, fields):
    least = {"max_tokens": 2} if path == "/v1/messages" else {"max_output_tokens": 2}
    reply = await gateway.fetch("POST", path, {"model": real_engine.model, **least, **fields})
    assert 400 <= reply.status < 500
