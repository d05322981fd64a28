"""Tenants before a real vLLM: what one of them sent is in nobody else's prefix cache."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI

from phasewise.clients.http_client import Timeouts
from phasewise.fleet.config import ApiKey
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import running_gateway

pytestmark = pytest.mark.real

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)
# The CPU back end keeps blocks of 128 tokens, and never takes the last one from the cache.
PROMPT = "The keeper of the lighthouse wrote down every ship that passed. " * 40
TENANTS = {"anna": "a", "another-of-a": "a", "bert": "b"}
KEYS = tuple(ApiKey(sha256=key_sha256(key), tenant=tenant) for key, tenant in TENANTS.items())


@pytest.fixture
async def gateway(real_engine):
    async with running_gateway(
        [real_engine], timeouts=PATIENT, poll_interval_s=1.0, api_keys=KEYS
    ) as gateway:
        yield gateway


async def cached_tokens(gateway, model, key, ask):
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
        usage = await ask(client, model)
    assert usage.prompt_tokens > 300
    details = usage.prompt_tokens_details
    return (details.cached_tokens or 0) if details else 0


async def ask_chat(client, model):
    messages = [{"role": "user", "content": PROMPT}]
    reply = await client.chat.completions.create(model=model, messages=messages, max_tokens=1)
    return reply.usage


async def ask_chat_streamed(client, model):
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": f"Listen. {PROMPT}"}], max_tokens=1, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    return [chunk.usage async for chunk in stream][-1]


async def ask_completion(client, model):
    reply = await client.completions.create(model=model, prompt=PROMPT, max_tokens=1)
    return reply.usage


@pytest.mark.parametrize("ask", [ask_chat, ask_chat_streamed, ask_completion])
async def test_a_prompt_is_cached_within_its_tenant_and_not_across(gateway, real_engine, ask):
    model = real_engine.model
    assert await cached_tokens(gateway, model, "anna", ask) == 0
    assert await cached_tokens(gateway, model, "another-of-a", ask) >= 256
    assert await cached_tokens(gateway, model, "bert", ask) == 0
    assert await cached_tokens(gateway, model, "bert", ask) >= 256
