"""Every field of OpenAI's own is accepted: passed on where engines know it, else taken out and named."""

from __future__ import annotations

import orjson
import pytest
from openai import AsyncOpenAI
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

from phasewise.core.errors import RequestRejected
from phasewise.core.request import Endpoint
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.fields import ALLOWED_FIELDS, ENGINE_CONTROLS, IGNORED_FIELDS, parse_body
from tests.gateway.harness import chat_body, running_gateway

OPENAIS = {
    Endpoint.CHAT: chat_create_params.CompletionCreateParamsBase,
    Endpoint.COMPLETIONS: completion_create_params.CompletionCreateParamsBase,
    Endpoint.EMBEDDINGS: embedding_create_params.EmbeddingCreateParams,
}
IGNORED = {
    "metadata": {"app": "x"},
    "store": True,
    "prompt_cache_key": "k",
    "service_tier": "auto",
    "safety_identifier": "s",
    "verbosity": "low",
    "modalities": ["text"],
    "prediction": {"type": "content", "content": "x"},
}


@pytest.mark.parametrize("endpoint", Endpoint, ids=lambda endpoint: endpoint.name)
def test_every_field_of_the_openai_package_is_accepted(endpoint):
    openais = {"stream", *OPENAIS[endpoint].__annotations__}
    if not endpoint.generates:
        openais.discard("stream")
    assert openais <= ALLOWED_FIELDS[endpoint] | IGNORED_FIELDS[endpoint]


def test_no_field_is_both_ignored_and_known_to_engines():
    for endpoint in Endpoint:
        assert IGNORED_FIELDS[endpoint].isdisjoint(ALLOWED_FIELDS[endpoint] | ENGINE_CONTROLS)


def test_an_ignored_field_reaches_no_engine_and_changes_nothing_else():
    plain = chat_body("hi", temperature=0.3)
    parsed = parse_body(Endpoint.CHAT, orjson.dumps({**IGNORED, **plain}))
    assert orjson.loads(parsed.upstream_body) == plain
    assert parsed.fields == plain
    assert set(parsed.ignored) == set(IGNORED)


def test_a_stream_with_an_ignored_field_is_still_asked_for_its_usage():
    parsed = parse_body(Endpoint.CHAT, orjson.dumps(chat_body(stream=True, store=False)))
    assert orjson.loads(parsed.upstream_body) == chat_body(
        stream=True, stream_options={"include_usage": True}
    )


def test_engine_controls_and_unknown_fields_stay_rejected_beside_ignored_ones():
    for field in (*sorted(ENGINE_CONTROLS), "made_up"):
        with pytest.raises(RequestRejected) as rejected:
            parse_body(Endpoint.CHAT, orjson.dumps(chat_body(store=True, **{field: 1})))
        assert rejected.value.param == field


@pytest.mark.parametrize("stream", [False, True])
async def test_the_reply_names_what_was_ignored(stream):
    async with (
        running_engines(1) as engines,
        running_gateway(engines) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        reply = await client.chat.completions.with_raw_response.create(**chat_body(stream=stream, **IGNORED))
        named = set(reply.headers["x-phasewise-ignored"].split(", "))
        plain = await gateway.chat()
    assert reply.http_response.status_code == 200
    assert named == set(IGNORED)
    assert b"x-phasewise-ignored" not in dict(plain.headers)
