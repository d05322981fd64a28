"""The gateway before two real vLLM that hand KV over: one computes prompts, the other writes the answers."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.config import HandOverConfig
from phasewise.model.hand_over import SplitRule
from phasewise.model.latency import ttft_breakdown
from phasewise.model.timeline import AttemptKind, Part
from phasewise.model.timeline_record import from_record
from tests.gateway.harness import eventually, request_id_of, running_gateway
from tests.gateway.test_hand_over import CHAT, COMPLETIONS, text_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)


@pytest.fixture
async def gateway(real_pair):
    hand_over = HandOverConfig(
        when=SplitRule.ALWAYS, timeout_s=60.0, lease_s=real_pair.lease_s, canary_s=None
    )
    async with running_gateway(
        real_pair.workers, timeouts=PATIENT, poll_interval_s=1.0, hand_over=hand_over
    ) as gateway:
        yield gateway


def body_of(path, model, stream, subject):
    text = f"Write about {subject}. " + " ".join(f"{subject} number {place}." for place in range(60))
    fields = {"model": model, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream": stream}
    if path == CHAT:
        return {**fields, "messages": [{"role": "user", "content": text}]}
    return {**fields, "prompt": text}


async def prompt_tokens(engine):
    """What the engine's prompt tokens came from: fetched, computed there."""
    seen = await asyncio.to_thread(engine.counters)
    sources = ("external_kv_transfer", "local_compute")
    return [seen.counter("prompt_tokens_by_source_total", source=it) or 0 for it in sources]


async def whole_text(engine, path, body):
    """The text of an engine that computes all of it, whatever it has cached."""
    client = HttpClient(engine.url, PATIENT)
    try:
        salted = orjson.dumps({**body, "cache_salt": "another"})
        headers = [(b"content-type", b"application/json")]
        return text_of(await client.fetch("POST", path, headers=headers, body=salted))
    finally:
        client.close()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_same_text_comes_from_kv_that_another_engine_computed(gateway, real_pair, path, stream):
    subject = f"{'boats' if path == CHAT else 'birds'}{'' if stream else ' and bees'}"
    body = body_of(path, real_pair.model, stream, subject)
    fetched, computed = await prompt_tokens(real_pair.decode)
    reply = await gateway.fetch("POST", path, body)
    timeline = from_record(await gateway.timeline(request_id_of(reply)))
    fetched_then, computed_then = await prompt_tokens(real_pair.decode)

    assert reply.status == 200
    assert [it.kind for it in timeline.attempts] == [AttemptKind.PREFILL_SIDE, AttemptKind.DECODE_SIDE]
    assert fetched_then - fetched == timeline.prompt_tokens > 300
    assert computed_then == computed
    assert b"remote_" not in reply.body
    assert text_of(reply) == await whole_text(real_pair.prefill, path, body)
    if stream:
        found = ttft_breakdown(timeline)
        assert found.seconds(Part.PREFILL) > found.seconds(Part.HAND_OVER) > 0
        assert found.residual_s > -0.005
    usage = "kv_cache_usage_perc"
    await eventually(lambda: real_pair.prefill.counters().gauge(usage) == 0, timeout_s=20.0)
