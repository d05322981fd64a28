"""OpenAI's and Anthropic's own clients in front of a gateway: plain and streamed, text and calls of tools."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anthropic
import openai
import pytest

from benchmarks.sdk_calls import CALLS, TURN, Clients
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import running_gateway

KEY = "a-clients-key"
KEYS = [{"sha256": key_sha256(KEY), "tenant": "team"}]


@asynccontextmanager
async def clients_of(gateway, key=KEY, model="fake-model"):
    async with (
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as one,
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key=key, max_retries=0) as other,
    ):
        yield Clients(one, other, model)


@pytest.fixture
async def gateway():
    async with running_engines(1) as engines, running_gateway(engines, api_keys=KEYS) as gateway:
        yield gateway


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_a_call_of_a_vendors_client_works(gateway, call):
    async with clients_of(gateway) as clients:
        await call(clients)


async def test_a_wrong_key_is_that_to_both_clients(gateway):
    async with clients_of(gateway, key="a-strangers") as clients:
        with pytest.raises(openai.AuthenticationError):
            await clients.openai.responses.create(model="fake-model", input="hi")
        with pytest.raises(anthropic.AuthenticationError) as rejected:
            await clients.anthropic.messages.create(model="fake-model", messages=TURN, max_tokens=4)
    assert rejected.value.body["error"]["type"] == "authentication_error"


async def test_anthropics_client_has_the_id_of_its_request(gateway):
    async with clients_of(gateway) as clients:
        message = await clients.anthropic.messages.create(model="fake-model", messages=TURN, max_tokens=4)
        assert (await gateway.timeline(message._request_id))["outcome"] == "succeeded"
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await clients.anthropic.messages.create(model="no-model", messages=TURN, max_tokens=4)
        assert (await gateway.timeline(unknown.value.request_id))["outcome"] == "rejected"


async def test_a_client_with_a_wrong_base_url_is_told_the_right_one(gateway):
    async with (
        openai.AsyncOpenAI(base_url=gateway.url, api_key=KEY, max_retries=0) as one,
        anthropic.AsyncAnthropic(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as other,
    ):
        with pytest.raises(openai.NotFoundError, match="nothing at POST /chat/completions") as without:
            await one.chat.completions.create(model="fake-model", messages=TURN)
        with pytest.raises(anthropic.NotFoundError, match="nothing at POST /v1/v1/messages") as twice:
            await other.messages.create(model="fake-model", messages=TURN, max_tokens=4)
    assert "this is /v1/chat/completions: OpenAI's clients take a base URL with /v1" in str(without.value)
    assert "this is /v1/messages: " in str(twice.value)
    elsewhere = await gateway.fetch("GET", "/nowhere")
    assert b"GET /openapi.json" in elsewhere.body
