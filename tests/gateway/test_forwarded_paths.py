"""The engines' other paths are forwarded, one by one, with the limits and records of all requests."""

from __future__ import annotations

import asyncio
import contextlib
import re

import orjson
import pytest
from openai import AsyncOpenAI
from pydantic import ValidationError

from phasewise.engines.known import INFERENCE_PATHS
from phasewise.fleet.config import GatewayConfig, WorkerConfig
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import request_id_of, running_gateway
from tests.raw_server import raw_server

KEY = [(b"authorization", b"Bearer k")]
JSON = (b"content-type", b"application/json")
CARD = {
    "id": "fake-model",
    "object": "model",
    "created": 7,
    "owned_by": "vllm",
    "root": "/m",
    "max_model_len": 64,
}


@contextlib.asynccontextmanager
async def engine(name="w0", status=b"200 OK", content_type=b"application/json", body=b'{"ok":1}', card=CARD):
    """A worker that keeps what it is sent, and the head and body of each request but health checks."""
    kept = []

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                sent = await reader.readexactly(int(length[1]) if length else 0)
                path = head.split()[1]
                if path in {b"/health", b"/metrics", b"/steps", b"/v1/models"}:
                    said = orjson.dumps({"data": [card]}) if path == b"/v1/models" else b""
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(said) + said)
                    continue
                kept.append((head, sent))
                fields = b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type, len(body))
                writer.write(b"HTTP/1.1 %b\r\n%b" % (status, fields) + body)

    async with raw_server(serve) as port:
        yield WorkerConfig(name=name, url=f"http://127.0.0.1:{port}", model="fake-model"), kept


async def test_every_path_of_the_tables_goes_to_the_engine_as_it_came():
    async with engine() as (worker, kept), running_gateway([worker]) as gateway:
        for path, methods in INFERENCE_PATHS.items():
            for method in methods:
                body = b'{"model": "fake-model", "anything": [1]}' if method == "POST" else b""
                reply = await gateway.fetch(method, path, body, [JSON])
                assert (reply.status, reply.body) == (200, b'{"ok":1}'), path
                head, sent = kept.pop()
                assert head.startswith(f"{method} {path} HTTP/1.1".encode())
                assert sent == body
        timeline = await gateway.timeline(request_id_of(reply))
    assert (timeline["outcome"], timeline["model"], timeline["generates"]) == (
        "succeeded",
        "fake-model",
        False,
    )


@pytest.mark.parametrize("path", ["/%74okenize", "/tokenize/", "/tokenize%2f", "/tokenize?a=b%20c"])
async def test_a_path_is_read_after_one_decoding_and_without_the_slash_at_its_end(path):
    async with engine() as (worker, kept), running_gateway([worker]) as gateway:
        assert (await gateway.fetch("POST", path, {"prompt": "a"}, [JSON])).status == 200
        models = await gateway.fetch("GET", "/v1/models/")
    assert kept[0][0].split()[1].partition(b"?")[0] == b"/tokenize"
    assert orjson.loads(models.body)["data"][0]["id"] == "fake-model"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/%2574okenize",
            "//tokenize",
            "/tokenize//",
            "/v1/../tokenize",
            "/v1/%2e%2e/tokenize",
            "/Tokenize",
        ),
        *("/invocations", "/inference/v1/generate", "/cohere/v2/chat", "/sleep", "/collective_rpc", "/slots"),
        *("/v1/load_lora_adapter", "/v1/realtime", "/v1/chat/completions/render"),
    ],
)
async def test_any_other_path_is_not_found_and_no_engine_hears_of_it(path):
    async with engine() as (worker, kept), running_gateway([worker], engine_paths=["/plugin"]) as gateway:
        reply = await gateway.fetch("POST", path, {"model": "fake-model"}, [JSON])
    assert reply.status == 404
    assert b"gateway.engine_paths" in reply.body
    assert kept == []


async def test_where_rights_are_lent_only_what_the_operator_names_is_open():
    settings = {"api_keys": [{"sha256": key_sha256("k")}], "engine_paths": ["/score", "/plugin"]}
    async with engine() as (worker, kept), running_gateway([worker], **settings) as gateway:
        closed = await gateway.fetch("POST", "/tokenize", {"model": "fake-model"}, KEY)
        assert closed.status == 404
        assert b"gateway.engine_paths" in closed.body
        assert (await gateway.fetch("POST", "/score", {"model": "fake-model"})).status == 401
        sent = {"model": "fake-model", "text_1": "a"}
        assert (await gateway.fetch("POST", "/score", sent, KEY)).status == 200
        assert (await gateway.fetch("GET", "/plugin", headers=KEY)).status == 200
        assert (await gateway.fetch("PUT", "/plugin", headers=KEY)).status == 405
        for more in ({"priority": 1}, {"cache_salt": "x"}, {"data_1": [{"image_url": {"url": "http://a"}}]}):
            reply = await gateway.fetch("POST", "/score", sent | more, KEY)
            assert reply.status == 400, more
    (_, scored), (head, asked) = kept
    assert orjson.loads(scored).items() >= sent.items()
    assert orjson.loads(scored)["cache_salt"]
    assert (head.split()[:2], asked) == ([b"GET", b"/plugin"], b"")


@pytest.mark.parametrize(
    "path",
    [
        *("/invocations", "/inference/v1/generate", "/cohere/v2/chat", "/sleep", "/wake_up", "/is_sleeping"),
        *("/pause", "/resume", "/is_paused", "/abort_requests", "/reset_prefix_cache", "/collective_rpc"),
        *("/update_weights", "/weight_info", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/start_profile"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/lora-adapters", "/fault_tolerance/status"),
        *("/server_info", "/shutdown", "/slots", "/props", "/v1/realtime", "/release_kv_cache_memory"),
        *("/get_world_size", "/kv_event_sources", "/a//b", "/a/", "/a/../b", "/%61", "/a?b", "a", "/"),
    ],
)
def test_what_controls_an_engine_is_never_added(path):
    with pytest.raises(ValidationError):
        GatewayConfig(engine_paths=[path])


def test_paths_of_plugins_are_added():
    GatewayConfig(engine_paths=["/v1/parse_resumes", "/plugin/v2/upscale", "/tokenizer_info"])


async def test_what_reaches_another_host_is_rejected_at_any_depth():
    async with engine() as (worker, kept), running_gateway([worker]) as gateway:
        for name in ("kv_transfer_params", "ec_transfer_params"):
            for body in (
                {name: {}},
                {"a": [{"vllm_xargs": {name: [1]}}]},
            ):
                reply = await gateway.fetch("POST", "/pooling", {"model": "fake-model", **body}, [JSON])
                assert (reply.status, name.encode() in reply.body) == (400, True)
        local = {"model": "fake-model", "data_1": {"image_url": {"url": "file:///etc/hosts"}}}
        assert (await gateway.fetch("POST", "/score", local, [JSON])).status == 400
        for form in (
            b'name="kv_transfer_params"\r\n\r\n{}',
            b'name="x"\r\n\r\n{"\\u006bv_transfer_params": 1}',
        ):
            body = b"--b\r\ncontent-disposition: form-data; %b\r\n--b--\r\n" % form
            headers = [(b"content-type", b"multipart/form-data; boundary=b")]
            reply = await gateway.fetch("POST", "/v1/audio/transcriptions", body, headers)
            assert (reply.status, b"kv_transfer_params" in reply.body) == (400, True)
    assert kept == []


AUDIO = bytes(range(256)) * 400 + b"\r\n--not the end\r\n\r\n"


async def test_audio_is_uploaded_byte_for_byte():
    async with (
        engine(body=b'{"text":"hello"}') as (worker, kept),
        engine("w1") as (other, _),
        running_gateway([worker, other]) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        await gateway.reload(worker, other.model_copy(update={"model": "another"}))
        said = await client.audio.transcriptions.create(
            file=("ä.wav", AUDIO),
            model="fake-model",
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
    assert said.text == "hello"
    (head, sent) = kept[0]
    boundary = re.search(rb"content-type: multipart/form-data; boundary=(\S+)", head)[1]
    parts = sent.split(b"--" + boundary)
    assert parts[-1] == b"--\r\n"
    assert next(part for part in parts if b"filename" in part).endswith(b"\r\n\r\n" + AUDIO + b"\r\n")


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"--b--",
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nfake-model',
        b'x--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--',
        b'--b\r\ncontent-disposition: form-data; name="a"; name="model"\r\n\r\nm\r\n--b--',
        b'--b\r\ncontent-disposition: form-data; name="m\\odel"\r\n\r\nm\r\n--b--',
        b"--b\r\n\r\nm\r\n--b--",
        b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n--b\r\n\r\nm\r\n--b--',
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n' * 2 + b"--b--",
    ],
)
async def test_a_form_that_is_not_plain_is_rejected(form):
    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    async with (
        engine() as (worker, kept),
        engine("w1") as (other, _),
        running_gateway([worker, other]) as gateway,
    ):
        reply = await gateway.fetch("POST", "/v1/audio/transcriptions", form, headers)
    assert (reply.status, kept) == (400, [])


async def test_without_a_model_only_a_single_engine_is_asked():
    async with engine() as (worker, kept), engine("w1") as (other, _), running_gateway([worker]) as gateway:
        assert (await gateway.fetch("GET", "/version")).status == 200
        assert (await gateway.fetch("GET", "/ping")).status == 200
        assert (await gateway.fetch("POST", "/tokenize", {"prompt": "a"})).status == 200
        assert len(kept) == 3
        await gateway.reload(worker, other)
        posted = await gateway.fetch("POST", "/tokenize", {"prompt": "a"})
        asked = await gateway.fetch("GET", "/version")
        named = await gateway.fetch("POST", "/tokenize", {"prompt": "a", "model": "fake-model"})
    assert (posted.status, asked.status, named.status) == (400, 404, 200)
    assert b"names no model, and there are 2 engines" in posted.body
    assert b"one engine" in asked.body


@pytest.mark.parametrize("status", [b"404 Not Found", b"422 Unprocessable Entity", b"501 Not Implemented"])
async def test_an_engines_no_is_passed_on_and_says_nothing_about_its_health(status):
    async with (
        engine(status=status, body=b'{"no":1}') as (worker, kept),
        running_gateway([worker]) as gateway,
    ):
        reply = await gateway.fetch("POST", "/score", {"model": "fake-model"})
        assert (reply.status, reply.body) == (int(status[:3]), b'{"no":1}')
        assert len(kept) == 1
        assert (await gateway.fetch("GET", "/health")).status == 200


async def test_a_stream_of_unknown_events_passes_as_it_came():
    stream = b'data: {"object":"transcription.chunk"}\n\nevent: other\ndata: x\n\n'
    async with (
        engine(content_type=b"text/event-stream", body=stream) as (worker, _),
        running_gateway([worker], engine_paths=["/plugin"]) as gateway,
    ):
        reply = await gateway.fetch("POST", "/plugin", {"stream": True})
        timeline = await gateway.timeline(request_id_of(reply))
    assert (reply.status, reply.body, timeline["outcome"]) == (200, stream, "succeeded")


async def test_models_are_listed_as_engines_describe_them():
    shorter = {**CARD, "root": "/other", "max_model_len": 32}
    async with engine() as (worker, _), engine("w1", card=shorter) as (other, _):
        silent = {"id": "silent", "object": "model", "created": 0, "owned_by": "phasewise"}
        third = other.model_copy(update={"name": "w2", "model": "silent"})
        async with running_gateway([worker, other, third]) as gateway:
            listed = orjson.loads((await gateway.fetch("GET", "/v1/models")).body)
            one = orjson.loads((await gateway.fetch("GET", "/v1/models/fake-model")).body)
    assert listed == {"object": "list", "data": [{**CARD, "max_model_len": 32}, silent]}
    assert one == listed["data"][0]
