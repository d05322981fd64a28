"""/v1/responses and /v1/messages have the same timelines, limits, tenants and guards as other endpoints."""

from __future__ import annotations

import asyncio
import json

import orjson
import pytest

from phasewise.core.errors import RequestRejected
from phasewise.core.request import Endpoint
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.api.fields import parse_body
from tests.gateway.harness import ADMIN, listening, request_id_of, running_gateway

BODIES = {
    Endpoint.RESPONSES: {"model": "fake-model", "input": "say something", "max_output_tokens": 8},
    Endpoint.MESSAGES: {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "say something"}],
        "max_tokens": 8,
    },
}
COUNT = {"model": "fake-model", "messages": [{"role": "user", "content": "say something"}]}
BOTH = pytest.mark.parametrize("endpoint", BODIES, ids=lambda it: it.name)
WITH_MESSAGES = [*BODIES, Endpoint.COUNT_TOKENS]


@pytest.fixture
async def gateway():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        yield gateway


def ask(gateway, endpoint, headers=(), **fields):
    return gateway.fetch("POST", endpoint.value, {**BODIES[endpoint], **fields}, headers)


# --- timelines, limits, tenants ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeline_has_the_tokens_and_the_end(gateway, endpoint, stream):
    reply = await ask(gateway, endpoint, stream=stream)
    assert reply.status == 200
    timeline = await gateway.timeline(request_id_of(reply))
    assert (timeline["outcome"], timeline["finish"]) == ("succeeded", "length")
    assert (timeline["out"], timeline["cached"]) == (8, 0)
    assert timeline["in"] > 3
    assert timeline.get("streamed", True) is stream
    if stream:
        assert len(timeline["content"]) == 8
        assert timeline["ttft"]["total_ms"] > 0
    metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
    assert 'phasewise_tokens_total{model="fake-model",kind="output"} 8\n' in metrics


async def test_a_response_has_the_engines_timings_and_is_found_by_the_engines_id(gateway):
    reply = await ask(gateway, Endpoint.RESPONSES, stream=True)
    timeline = await gateway.timeline(request_id_of(reply))
    assert {"engine_queue", "prefill"} <= {part["part"] for part in timeline["ttft"]["parts"]}
    engine_id = timeline["attempts"][0]["engine_id"]
    assert engine_id == f"resp_{timeline['id']}"
    assert (await gateway.timeline(f"{engine_id}_0"))["id"] == timeline["id"]


async def test_a_message_is_found_by_the_engines_id(gateway):
    timeline = await gateway.timeline(request_id_of(await ask(gateway, Endpoint.MESSAGES, stream=True)))
    assert timeline["attempts"][0]["engine_id"] == f"chatcmpl-{timeline['id']}"


async def test_tokens_are_counted_and_generate_nothing(gateway):
    reply = await gateway.fetch("POST", Endpoint.COUNT_TOKENS.value, COUNT)
    assert orjson.loads(reply.body)["input_tokens"] > 3
    timeline = await gateway.timeline(request_id_of(reply))
    assert timeline["generates"] is False


@BOTH
async def test_a_keys_tokens_are_charged_by_what_the_engine_counted(endpoint):
    keys = [{"sha256": key_sha256("k"), "tokens_per_minute": 200}]
    key = [(b"x-api-key", b"k")]
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys) as gateway:
        replies = [await ask(gateway, endpoint, headers=key, stream=True) for _ in range(20)]
    over = [reply for reply in replies if reply.status == 429]
    # Each has some sixteen tokens of prompt and eight of answer; its body looks like more than thirty.
    assert 6 < replies.index(over[0]) < 12
    assert b"tokens_over_limit" in over[0].body


@BOTH
async def test_tenants_have_prompts_of_their_own_in_the_engines_cache(endpoint):
    keys = [{"sha256": key_sha256(it), "tenant": it} for it in ("a", "b")]
    name = "input" if endpoint is Endpoint.RESPONSES else "messages"
    long = {name: [{"role": "user", "content": "many words " * 200}]}
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys) as gateway:
        cached = []
        for tenant in (b"a", b"b", b"a"):
            reply = await ask(gateway, endpoint, headers=[(b"x-api-key", tenant)], **long)
            timeline = await gateway.timeline(request_id_of(reply))
            cached.append(timeline["cached"])
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


async def test_two_keys_in_one_header_are_rejected_and_bearer_counts_before_x_api_key():
    keys = [{"sha256": key_sha256("k")}]
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys) as gateway:

        async def status(*headers):
            return (await ask(gateway, Endpoint.MESSAGES, headers=headers)).status

        assert await status((b"x-api-key", b"k")) == 200
        assert await status((b"authorization", b"Bearer k")) == 200
        assert await status((b"x-api-key", b"other")) == 401
        assert await status((b"x-api-key", b"")) == 401
        assert await status((b"x-api-key", b"k"), (b"x-api-key", b"k")) == 400
        assert await status((b"authorization", b"Bearer other"), (b"x-api-key", b"k")) == 401
        # A key of a client opens no admin route, however it is sent.
        admin = await gateway.fetch("GET", "/phasewise/v1/workers", headers=[(b"x-api-key", ADMIN[0][1][7:])])
        assert admin.status == 401


# --- what reaches an engine -------------------------------------------------------------------------------


async def got_by_engine(path, body, answer=b"{}", of_worker=None, **options):
    """What a worker is sent for a request."""
    seen = []

    async def reply(head, sent, writer):
        seen.append(orjson.loads(sent))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))

    async with listening(reply) as worker:
        keyed = worker.model_copy(update=of_worker or {})
        async with running_gateway([keyed], **options) as gateway:
            await gateway.fetch("POST", path, body)
    (only,) = seen
    return only


@pytest.mark.parametrize("lends_rights", [False, True])
async def test_an_engine_stores_no_response_for_keys_and_gets_the_gateways_id(tmp_path, lends_rights):
    (tmp_path / "key").write_text("engines")
    body = {**BODIES[Endpoint.RESPONSES], "store": True, "user": "u"}
    if not lends_rights:
        body["request_id"] = "resp_of_another"
    of_worker = {"api_key_file": str(tmp_path / "key")} if lends_rights else {}
    sent = await got_by_engine("/v1/responses", body, of_worker=of_worker)
    request_id = sent.pop("request_id")
    assert request_id.startswith("resp_")
    assert request_id != "resp_of_another"
    assert sent == {**BODIES[Endpoint.RESPONSES], "user": "u", "store": not lends_rights}


async def test_a_message_is_passed_on_as_it_came():
    body = {**BODIES[Endpoint.MESSAGES], "system": "brief", "thinking": {"type": "disabled"}}
    assert await got_by_engine("/v1/messages", body) == body


@BOTH
async def test_answers_are_not_disaggregated_or_cached(endpoint):
    parsed = parse_body(endpoint, orjson.dumps(BODIES[endpoint]))
    assert not parsed.splittable
    cache = {"mode": "serve"}
    async with running_engines(1) as engines, running_gateway(engines, cache=cache) as gateway:
        replies = [await ask(gateway, endpoint, temperature=0) for _ in range(2)]
    assert all(b"cache-status" not in dict(reply.headers) for reply in replies)


# --- errors -------------------------------------------------------------------------------------------------


async def test_every_error_of_messages_has_anthropics_shape(gateway):
    asked = BODIES[Endpoint.MESSAGES]
    for path, body, status, kind in [
        ("/v1/messages", b"{", 400, "invalid_request_error"),
        ("/v1/messages", {**asked, "model": "other"}, 404, "not_found_error"),
        # The engine's own.
        ("/v1/messages", {**asked, "max_tokens": -1}, 400, "invalid_request_error"),
        ("/v1/messages/count_tokens", {"model": "other"}, 404, "not_found_error"),
        ("/v1/messages/nothing", asked, 404, "not_found_error"),
    ]:
        reply = await gateway.fetch("POST", path, body)
        said = orjson.loads(reply.body)
        assert (reply.status, said["type"], said["error"]["type"]) == (status, "error", kind)
        assert said["error"]["message"]
    assert orjson.loads((await gateway.fetch("GET", "/v1/messages")).body)["type"] == "error"
    assert "type" not in orjson.loads((await gateway.fetch("GET", "/v1/responses")).body)


@BOTH
async def test_a_worker_that_is_gone_is_an_error_in_the_right_shape(endpoint):
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        await engines[0].stop()
        reply = await ask(gateway, endpoint)
    said = orjson.loads(reply.body)
    assert reply.status == 503
    assert said.get("type") == ("error" if endpoint is Endpoint.MESSAGES else None)
    assert said["error"]["type"] in {
        "overloaded_error",
        "api_error",
        "service_unavailable_error",
        "upstream_error",
    }


@BOTH
async def test_a_stream_that_breaks_ends_with_an_error_and_is_not_resumed(endpoint):
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        for engine in engines:
            engine.inject("cut", after_tokens=3)
        reply = await ask(gateway, endpoint, stream=True)
        timeline = await gateway.timeline(request_id_of(reply))
    *_, last = reply.body.strip().split(b"\n\n")
    name, _, data = last.partition(b"\ndata: ")
    said = orjson.loads(data)
    assert name == b"event: error"
    assert (said["type"] if endpoint is Endpoint.MESSAGES else "error") == "error"
    assert said["error"]["code"] == "stream_not_resumable"
    assert timeline["outcome"] == "failed"
    assert f"answers of {endpoint.value} cannot be resumed yet" in timeline["attempts"][0]["note"]


@BOTH
async def test_a_request_that_breaks_before_its_first_token_runs_elsewhere(endpoint):
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        engines[0].inject("cut", after_tokens=0)
        replies = await asyncio.gather(*(ask(gateway, endpoint, stream=True) for _ in range(4)))
    assert all(b"error" not in reply.body for reply in replies)


# --- guards -------------------------------------------------------------------------------------------------

KILLS = {"type": "object", "properties": {"a": {"type": "array", "maxItems": 10**9}}}
HANGS = {"type": "string", "pattern": "a{10000}"}
URL = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}


def messages(*blocks, role="user"):
    return {"messages": [{"role": role, "content": list(blocks)}]}


def items(*parts):
    return {"input": [{"role": "user", "content": list(parts)}]}


ATTACKS = [
    *((Endpoint.RESPONSES, fields) for fields in (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": KILLS}}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": HANGS}}},
        {"text": "x"},
        {"structured_outputs": {"json": json.dumps(KILLS)}},
        {"structured_outputs": {"regex": "a{10000}"}},
        {"structured_outputs": 5},
        {"tools": [{"type": "function", "name": "f", "parameters": KILLS}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [
            {"type": "function", "name": "f", "parameters": HANGS}]}]},
        {"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://10.0.0.1"}]},
        {"tools": [{"type": "web_search_preview"}]},
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
        {"tools": [{"type": ["function"]}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]},
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        {"chat_template_kwargs": {"tokenize": False}},
        {"max_output_tokens": 2**70},
        {"temperature": 1e300},
        {"logit_bias": {"1": 2**70}},
        {"input": [{"role": "assistant", "content": []}]},
        items({"type": "input_image", "image_url": "http://169.254.169.254/"}),
        items({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
        items({"type": "input_file", "file_url": "http://10.0.0.1"}),
        items({"type": "input_image", "image_url": "data:image/png;base64,x", "uuid": "theirs"}),
        items({"type": "image_embeds", "image_embeds": "x"}),
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_image", "image_url": "http://10.0.0.1"}]}]},
        {"input": [{"type": "computer_call_output", "call_id": "c", "output": {
            "type": "computer_screenshot", "image_url": "http://10.0.0.1"}}]},
        {"previous_response_id": "resp_of_another_tenant"},
        {"previous_input_messages": []},
        {"request_id": "resp_of_another_tenant"},
    )),
    *((endpoint, fields) for endpoint in (Endpoint.MESSAGES, Endpoint.COUNT_TOKENS) for fields in (
        messages(URL),
        messages({"type": "image", "source": {"type": "base64", "url": "http://10.0.0.1", "data": "x"}}),
        messages({"type": "image", "source": "http://10.0.0.1"}),
        messages({"type": "tool_result", "tool_use_id": "t", "content": [URL]}),
        messages({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": 5}]}),
        messages({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {
            "name": "f", "input_schema": KILLS}}}, role="system"),
        messages({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {
            "name": "f", "input_schema": HANGS}}}, role="system"),
        {"tools": [{"name": "f", "input_schema": KILLS}]},
        {"tools": [{"name": "f", "input_schema": HANGS}]},
        {"output_config": {"format": {"type": "json_schema", "schema": KILLS}}},
        {"output_config": "x"},
        {"thinking": 5},
        {"thinking": {"type": "enabled", "budget_tokens": 2**70}},
        {"chat_template_kwargs": {"cache_salt": "x"}},
        {"mcp_servers": [{"type": "url", "url": "http://10.0.0.1"}]},
    )),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "fields"), ATTACKS)
@pytest.mark.parametrize("passes_unknown", [False, True])
def test_what_endangers_engines_or_tenants_is_rejected(endpoint, fields, passes_unknown):
    body = json.dumps({**(BODIES.get(endpoint) or COUNT), **fields}).encode()
    with pytest.raises(RequestRejected):
        parse_body(endpoint, body, passes_unknown=passes_unknown)


@pytest.mark.parametrize("endpoint", WITH_MESSAGES, ids=lambda it: it.name)
@pytest.mark.parametrize("hide", [b'"\\u0063ache_salt"', b'"cache_salt"'])
def test_an_escaped_letter_hides_no_control(endpoint, hide):
    body = orjson.dumps(BODIES.get(endpoint) or COUNT)[:-1] + b"," + hide + b':"theirs"}'
    with pytest.raises(RequestRejected, match="keeps tenants apart"):
        parse_body(endpoint, body)


@pytest.mark.parametrize("endpoint", WITH_MESSAGES, ids=lambda it: it.name)
def test_a_body_that_is_too_deep_or_has_too_much_in_it_is_rejected(endpoint):
    name = "input" if endpoint is Endpoint.RESPONSES else "messages"
    for bad in (b"[" * 100 + b"]" * 100, b"[" + b"[]," * 30_000 + b"[]]"):
        with pytest.raises(RequestRejected):
            parse_body(endpoint, b'{"model":"m","max_tokens":1,"%b":%b}' % (name.encode(), bad))


@pytest.mark.parametrize("given", [5, "x", None, {}, [], [5], ["x"], [None], [{}], [{"content": 5}], [[[]]]])
@pytest.mark.parametrize("endpoint", WITH_MESSAGES, ids=lambda it: it.name)
def test_a_conversation_that_is_none_is_left_to_the_engine(endpoint, given):
    name = "input" if endpoint is Endpoint.RESPONSES else "messages"
    assert parse_body(endpoint, orjson.dumps({"model": "m", name: given})).model == "m"


def test_what_clients_send_of_their_own_accord_is_accepted():
    call = {
        "type": "tool_use",
        "id": "t",
        "name": "fetch",
        "input": {"url": "https://a.example", "uuid": "u"},
    }
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9_000}}
    parsed = parse_body(Endpoint.MESSAGES, orjson.dumps({**BODIES[Endpoint.MESSAGES], **messages(
        call, {"type": "tool_result", "tool_use_id": "t", "content": [picture]})}))  # fmt: skip
    # An image becomes some tokens, whatever its size.
    assert 4_000 < parsed.media_bytes < 9_000
    kept = items({"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"})
    asked = {**BODIES[Endpoint.RESPONSES], **kept}
    assert parse_body(Endpoint.RESPONSES, orjson.dumps(asked)).max_output_tokens == 8


def test_the_items_of_a_response_are_one_conversation():
    asked = {**BODIES[Endpoint.RESPONSES], "input": [{"role": "user", "content": "a"}] * 500}
    assert parse_body(Endpoint.RESPONSES, orjson.dumps(asked)).choices == 1


async def test_large_bodies_are_checked_in_the_other_process_too():
    long = {"messages": [{"role": "user", "content": "many words " * 30_000}]}
    config = FakeEngineConfig(model="fake-model")
    async with running_engines(1, config) as engines, running_gateway(engines) as gateway:
        reply = await ask(gateway, Endpoint.MESSAGES, **long, tools=[{"name": "f", "input_schema": KILLS}])
    said = orjson.loads(reply.body)
    assert (reply.status, said["type"]) == (400, "error")
    assert "maxItems" in said["error"]["message"]
