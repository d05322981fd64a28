"""Where the gateway lends no rights engines get what their clients send, but for what nobody may send."""

from __future__ import annotations

import contextlib

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.core.caching import Bypass
from phasewise.core.errors import RequestRejected
from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.core.request_fields import FIELDS_ON, PROMPT_FIELD
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.api.fields import parse_body
from phasewise.semantic_match.identity import why_bypassed
from tests.gateway.harness import PATIENT, chat_body, running_gateway, worker_for

UNKNOWN = {
    "thinking": {"type": "enabled"},
    "enable_thinking": False,
    "reasoning": {"effort": "low"},
    "provider": {"order": ["a"]},
    "usage": {"include": True},
    "num_ctx": 8192,
    "output_format": "text",
    "verbosity": "low",
    "max_tokenz": 5,
    "anything": None,
}
CONTROLS = {
    "priority": 5,
    "cache_salt": "mine",
    "return_token_ids": True,
    "session_id": "s",
    "chat_template": "{{ messages }}",
    "mm_processor_kwargs": {"a": 1},
    "chat_template_kwargs": {"tokenize": False},
}
NEVER = ["kv_transfer_params", "ec_transfer_params"]


def body_of(endpoint, **fields):
    return orjson.dumps({"model": "m", PROMPT_FIELD[endpoint]: "hi", **fields})


def trusting(body, endpoint=Endpoint.CHAT):
    return parse_body(endpoint, body, lends_rights=False)


@pytest.mark.parametrize("endpoint", WITH_KNOWN_FIELDS, ids=lambda endpoint: endpoint.name)
def test_without_keys_every_field_and_every_null_passes_unchanged(endpoint):
    every = {**UNKNOWN, **dict.fromkeys([*FIELDS_ON[endpoint], "client_metadata"])}
    for name in ("model", PROMPT_FIELD[endpoint], "request_id"):
        every.pop(name, None)
    for fields in (every, *({name: given} for name, given in {**UNKNOWN, **CONTROLS}.items())):
        body = body_of(endpoint, **fields)
        parsed = trusting(body, endpoint)
        assert orjson.loads(parsed.upstream_body) == orjson.loads(body)
        assert parsed.ignored == ()


@pytest.mark.parametrize("endpoint", WITH_KNOWN_FIELDS, ids=lambda endpoint: endpoint.name)
def test_with_keys_unknown_fields_and_nulls_are_left_out_and_named(endpoint):
    nulls = dict.fromkeys(["priority", "cache_salt", *NEVER])
    parsed = parse_body(endpoint, body_of(endpoint, **UNKNOWN, **nulls, client_metadata={"a": "b"}))
    assert {"anything", "max_tokenz", "provider", "client_metadata", *nulls} <= set(parsed.ignored)
    assert set(orjson.loads(parsed.upstream_body)).isdisjoint(parsed.ignored)


def test_without_keys_a_field_that_engines_ignore_may_hold_any_number():
    parsed = trusting(body_of(Endpoint.CHAT, metadata=1e300, temperature=1))
    assert b"1e300" in parsed.upstream_body.replace(b"e+", b"e")


@pytest.mark.parametrize("name", CONTROLS)
def test_with_keys_a_control_is_rejected_with_the_reason(name):
    with pytest.raises(RequestRejected, match="here clients or engines have keys") as rejected:
        parse_body(Endpoint.CHAT, body_of(Endpoint.CHAT, **{name: CONTROLS[name]}))
    assert str(rejected.value.param).startswith(name)


@pytest.mark.parametrize("lends_rights", [False, True])
@pytest.mark.parametrize("endpoint", WITH_KNOWN_FIELDS, ids=lambda endpoint: endpoint.name)
@pytest.mark.parametrize(
    "hidden",
    [
        '"%s":{"a":1}',
        '"vllm_xargs":{"%s":{"a":1}}',
        '"sampling_params":{"extra_args":{"%s":{"a":1}}}',
        '"made_up":[[{"a":{"%s":"x"}}]]',
        # An engine may read the first of two fields.
        '"vllm_xargs":{"%s":0},"vllm_xargs":{"%s":1}',
    ],
)
def test_whose_memory_an_engine_reads_is_never_the_clients_to_say(endpoint, hidden, lends_rights):
    for name in NEVER:
        for spelled in (name, name.replace("t", "\\u0074"), name.replace("_", "\\u005F")):
            body = body_of(endpoint)[:-1] + b"," + hidden.replace("%s", spelled).encode() + b"}"
            with pytest.raises(RequestRejected) as rejected:
                parse_body(endpoint, body, lends_rights=lends_rights)
            assert rejected.value.param in {name, "vllm_xargs"}


def test_a_text_may_name_them_and_a_field_given_twice_hides_none():
    body = orjson.dumps(chat_body("what are kv_transfer_params?", stop=None))
    assert orjson.loads(trusting(body).upstream_body) == orjson.loads(body)
    twice = b'{"made_up":{"kv_transfer_params":{"a":1}},' + body[1:-1] + b',"made_up":{}}'
    assert b'{"a":1}' not in trusting(twice).upstream_body


def test_the_request_id_is_the_gateways():
    parsed = trusting(body_of(Endpoint.RESPONSES, request_id="resp_1", session_id="s"), Endpoint.RESPONSES)
    assert parsed.ignored == ("request_id",)
    assert orjson.loads(parsed.upstream_body) == {"model": "m", "input": "hi", "session_id": "s"}


@pytest.mark.parametrize("url", ["http://h/a.png", "HTTPS://h/a.png", "data:image/png;base64,AA"])
def test_without_keys_an_image_by_its_address_passes(url):
    for part in ({"image_url": {"url": url}, "uuid": "u"}, {"image_url": url}, {"image_embeds": "AA"}):
        trusting(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]}))
    source = {"type": "image", "source": {"type": "url", "url": url}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [source]}
    for part in (source, result):
        turns = [{"role": "user", "content": [part]}]
        trusting(orjson.dumps({"model": "m", "messages": turns}), Endpoint.MESSAGES)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "FILE:///etc/passwd", " file:///a", "ftp://h", "/a"])
def test_an_engines_own_files_are_closed_everywhere(url):
    for part in ({"image_url": {"url": url}}, {"image_url": url}, {"video_url": {"url": url}}):
        with pytest.raises(RequestRejected, match="neither an http"):
            trusting(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]}))


@pytest.mark.parametrize("value", [{"maxItems": 10**9}, {"a": [{"pattern": "a{10000}"}]}, {"a": {"b": 1e30}}])
def test_what_kills_an_engine_stays_closed(value):
    for name in ("made_up", "vllm_xargs"):
        with pytest.raises(RequestRejected):
            trusting(body_of(Endpoint.CHAT, **{name: value}))


def test_a_request_with_a_control_is_not_split_and_bypasses_the_cache():
    plain = trusting(orjson.dumps(chat_body(store=False, metadata={"a": "b"})))
    assert plain.splittable
    assert why_bypassed(Endpoint.CHAT, plain.fields, 2.0) is None
    for name, given in {**CONTROLS, "made_up": None}.items():
        parsed = trusting(orjson.dumps(chat_body(**{name: given})))
        if name != "chat_template_kwargs":
            assert not parsed.splittable
            assert why_bypassed(Endpoint.CHAT, parsed.fields, 2.0) is Bypass.UNKNOWN_FIELD


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.RESPONSES], ids=lambda it: it.name)
@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}, {"model": 5}, {"model": "m" * 300}])
async def test_without_a_model_the_only_one_is_asked_and_judges(endpoint, model):
    body = {PROMPT_FIELD[endpoint]: "hi", **model}
    if endpoint is Endpoint.CHAT:
        body = {"messages": [{"role": "user", "content": "hi"}], **model}
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        with contextlib.closing(HttpClient(engines[0].base_url, PATIENT)) as client:
            direct = await client.fetch("POST", endpoint, body=orjson.dumps(body))
        assert (await gateway.fetch("POST", endpoint, body)).status == direct.status
        other = worker_for(engines[1], "w1").model_copy(update={"model": "other"})
        await gateway.reload(worker_for(engines[0]), other)
        assert (await gateway.fetch("POST", endpoint, body)).status == 400


async def test_a_worker_with_a_key_closes_what_was_open(tmp_path):
    (tmp_path / "key").write_text("engines")
    body = {**chat_body(priority=1), "num_ctx": 8192}
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.fetch("POST", Endpoint.CHAT, body)
        assert (reply.status, b"x-phasewise-ignored" in dict(reply.headers)) == (200, False)
        await gateway.reload(worker_for(engines[0], api_key_file=str(tmp_path / "key")))
        reply = await gateway.fetch("POST", Endpoint.CHAT, body)
        assert reply.status == 400
        assert b"whose request the engine serves first" in reply.body
        body.pop("priority")
        assert dict((await gateway.fetch("POST", Endpoint.CHAT, body)).headers)[b"x-phasewise-ignored"]


async def test_a_client_with_a_key_is_told_what_it_may_not_send():
    headers = ((b"authorization", b"Bearer k"),)
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=({"sha256": key_sha256("k")},)) as gateway,
    ):
        reply = await gateway.chat(headers=headers, cache_salt="mine")
    assert reply.status == 400
    assert b"it keeps tenants apart in the engine's cache" in reply.body
