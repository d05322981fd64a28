"""Every field of OpenAI's and Anthropic's packages is known: passed on, taken out and named, or rejected."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from openai import AsyncOpenAI
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from phasewise.core.errors import RequestRejected
from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.core.request_fields import FIELDS_ON, PROMPT_FIELD
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.api.fields import ALLOWED_FIELDS, ENGINE_CONTROLS, IGNORED_FIELDS, parse_body
from tests.gateway.harness import chat_body, running_gateway
from tests.paths import ROOT

TYPES = {
    Endpoint.CHAT: chat_create_params.CompletionCreateParamsBase,
    Endpoint.COMPLETIONS: completion_create_params.CompletionCreateParamsBase,
    Endpoint.EMBEDDINGS: embedding_create_params.EmbeddingCreateParams,
    Endpoint.RESPONSES: response_create_params.ResponseCreateParamsBase,
    Endpoint.MESSAGES: message_create_params.MessageCreateParamsBase,
    Endpoint.COUNT_TOKENS: message_count_tokens_params.MessageCountTokensParams,
}
KEYS = ({"sha256": key_sha256("k")},)
IGNORED = {
    "metadata": {"app": "x"},
    "store": True,
    "prompt_cache_key": "k",
    "service_tier": "auto",
    "safety_identifier": "s",
    "prediction": {"type": "content", "content": "x"},
    "verbosity": "low",
}
AT_DEFAULT = {"modalities": ["text"], "functions": [], "audio": None}
UNSUPPORTED = {
    Endpoint.CHAT: {
        "audio": {"voice": "alloy", "format": "wav"},
        "modalities": ["text", "audio"],
        "web_search_options": {},
        "functions": [{"name": "f"}],
    },
    Endpoint.RESPONSES: {
        "background": True,
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
        "prompt": {"id": "pmpt_1"},
    },
    Endpoint.MESSAGES: {"container": "c", "mcp_servers": [{"url": "http://10.0.0.1"}], "inference_geo": "eu"},
}


def body_of(endpoint, **fields):
    return orjson.dumps({"model": "m", PROMPT_FIELD[endpoint]: "hi", **fields})


@pytest.mark.parametrize("endpoint", WITH_KNOWN_FIELDS, ids=lambda endpoint: endpoint.name)
def test_every_field_of_the_installed_packages_is_known(endpoint):
    theirs = {*TYPES[endpoint].__annotations__, *(["stream"] if endpoint.generates else [])}
    assert theirs - FIELDS_ON[endpoint].keys() == set()
    assert theirs.isdisjoint(ENGINE_CONTROLS)


def test_the_reference_lists_what_is_ignored_and_what_is_unsupported():
    page = (ROOT / "docs" / "reference" / "gateway.md").read_text()
    for endpoint in WITH_KNOWN_FIELDS:
        for kind in ("ignored", "unsupported"):
            named = {row.name for row in FIELDS_ON[endpoint].values() if row.type == kind}
            row = re.search(rf"\| `{endpoint}` \| {kind} \|(.*)\|", page)
            assert set(re.findall(r"`(\w+)`", row[1] if row else "")) == named


def test_no_field_is_both_ignored_and_known_to_engines():
    for endpoint in WITH_KNOWN_FIELDS:
        assert IGNORED_FIELDS[endpoint].isdisjoint(ALLOWED_FIELDS[endpoint] | ENGINE_CONTROLS)


def test_an_ignored_field_reaches_no_engine_and_changes_nothing_else():
    plain = chat_body("hi", temperature=0.3)
    parsed = parse_body(Endpoint.CHAT, orjson.dumps({**IGNORED, **AT_DEFAULT, **plain}))
    assert orjson.loads(parsed.upstream_body) == plain
    assert parsed.fields == plain
    assert set(parsed.ignored) == {*IGNORED, *AT_DEFAULT}


@pytest.mark.parametrize(
    ("endpoint", "name", "given"),
    [(endpoint, name, given) for endpoint, fields in UNSUPPORTED.items() for name, given in fields.items()],
)
@pytest.mark.parametrize("passes_unknown", [False, True])
def test_a_field_that_would_change_the_answer_is_rejected_in_words(endpoint, name, given, passes_unknown):
    with pytest.raises(RequestRejected, match="would change the answer") as rejected:
        parse_body(endpoint, body_of(endpoint, **{name: given}), passes_unknown=passes_unknown)
    assert rejected.value.param == name
    assert rejected.value.hint


def test_a_stream_with_an_ignored_field_is_still_asked_for_its_usage():
    parsed = parse_body(Endpoint.CHAT, orjson.dumps(chat_body(stream=True, store=False)))
    assert orjson.loads(parsed.upstream_body) == chat_body(
        stream=True, stream_options={"include_usage": True}
    )


@pytest.mark.parametrize("endpoint", WITH_KNOWN_FIELDS, ids=lambda endpoint: endpoint.name)
@pytest.mark.parametrize("passes_unknown", [False, True])
def test_engine_controls_stay_rejected_beside_ignored_ones(endpoint, passes_unknown):
    beside = dict.fromkeys(IGNORED_FIELDS[endpoint])
    for field in sorted(ENGINE_CONTROLS):
        with pytest.raises(RequestRejected) as rejected:
            parse_body(endpoint, body_of(endpoint, **beside, **{field: 1}), passes_unknown=passes_unknown)
        assert rejected.value.param == field


@pytest.mark.parametrize("endpoint", WITH_KNOWN_FIELDS, ids=lambda endpoint: endpoint.name)
def test_an_unknown_field_is_left_out_unless_it_is_to_be_passed_on(endpoint):
    body = body_of(endpoint, made_up={"deep": [1]})
    parsed = parse_body(endpoint, body)
    assert (parsed.ignored, "made_up" in orjson.loads(parsed.upstream_body)) == (("made_up",), False)
    parsed = parse_body(endpoint, body, passes_unknown=True)
    assert orjson.loads(parsed.upstream_body)["made_up"] == {"deep": [1]}
    assert parsed.ignored == ()
    # It may define the prompt, which then would differ between the workers.
    assert not parsed.splittable


@pytest.mark.parametrize(
    "value",
    [
        {"maxItems": 10**9},
        {"a": [{"pattern": "a{10000}"}]},
        2**70,
        {"a": {"b": 2**70}},
        {"json": '{"maxItems": 1000000000}'},
    ],
)
def test_a_passed_field_cannot_bring_what_kills_an_engine(value):
    body = json.dumps(chat_body(made_up=value)).encode()
    with pytest.raises(RequestRejected):
        parse_body(Endpoint.CHAT, body, passes_unknown=True)


async def test_the_switch_for_unknown_fields_can_be_reloaded():
    with_key = {"headers": ((b"authorization", b"Bearer k"),), "made_up": 1}
    async with running_engines(1) as engines, running_gateway(engines, api_keys=KEYS) as gateway:
        assert dict((await gateway.chat(**with_key)).headers)[b"x-phasewise-ignored"] == b"made_up"
        large = {"metadata": "many words " * 200_000, **with_key}
        assert b"made_up" in dict((await gateway.chat(**large)).headers)[b"x-phasewise-ignored"]
        assert b"unknown_fields" in (await gateway.reload(unknown_fields="pass")).body
        passed = await gateway.chat(**with_key)
        assert (passed.status, b"x-phasewise-ignored" in dict(passed.headers)) == (200, False)
        assert (await gateway.chat(**with_key, priority=1)).status == 400
        # Parsed in the other process, which has to know it too.
        assert dict((await gateway.chat(**large)).headers)[b"x-phasewise-ignored"] == b"metadata"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_reply_names_what_was_ignored(stream):
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=KEYS) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
    ):
        reply = await client.chat.completions.with_raw_response.create(**chat_body(stream=stream, **IGNORED))
        named = set(reply.headers["x-phasewise-ignored"].split(", "))
        plain = await gateway.chat(headers=((b"authorization", b"Bearer k"),))
    assert reply.http_response.status_code == 200
    assert named == set(IGNORED)
    assert b"x-phasewise-ignored" not in dict(plain.headers)


@pytest.mark.parametrize(
    ("path", "part", "said"),
    [
        ("/v1/messages", {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}, "base64"),
        (
            "/v1/chat/completions",
            {"type": "image_url", "image_url": {"url": "http://a/b.png"}},
            "as a data: URL",
        ),
    ],
)
async def test_an_image_by_address_is_rejected_with_the_form_that_its_endpoint_takes(path, part, said):
    body = {"model": "fake-model", "max_tokens": 4, "messages": [{"role": "user", "content": [part]}]}
    headers = ((b"authorization", b"Bearer k"),)
    async with running_engines(1) as engines, running_gateway(engines, api_keys=KEYS) as gateway:
        reply = await gateway.fetch("POST", path, body, headers)
    assert reply.status == 400
    assert said in orjson.loads(reply.body)["error"]["message"]


async def test_a_key_over_its_limit_is_told_which_and_for_how_long():
    keys = ({"sha256": key_sha256("k"), "requests_per_minute": 1},)
    with_key = ((b"authorization", b"Bearer k"),)
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys) as gateway:
        await gateway.chat(headers=with_key)
        reply = await gateway.chat(headers=with_key)
    message = orjson.loads(reply.body)["error"]["message"]
    wait_s = dict(reply.headers)[b"retry-after"].decode()
    assert (
        message == f"this key's limit of 1 requests per minute is reached. hint: send it again in {wait_s} s"
    )
