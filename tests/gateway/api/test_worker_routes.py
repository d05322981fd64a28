"""An admin asks a worker for its counters and its tokenizer through the gateway; nobody else can."""

from __future__ import annotations

import orjson
import pytest

from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, WorkerConfig
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import ADMIN, listening, running_gateway

METRICS = ("GET", "/phasewise/v1/workers/w0/metrics")
TOKENIZE = ("POST", "/phasewise/v1/workers/w0/tokenize")
CLIENT = [(b"authorization", b"Bearer a-clients")]


async def test_a_worker_s_counters_and_tokenizer_are_passed_on_as_they_are():
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        await gateway.chat()
        page = await gateway.fetch(*METRICS, headers=ADMIN)
        body = {"model": "fake-model", "prompt": "hello there"}
        counted = await gateway.fetch(*TOKENIZE, body, headers=ADMIN)
    assert page.status == 200
    assert b'vllm:prompt_tokens_total{engine="0"' in page.body
    assert dict(page.headers)[b"content-type"].startswith(b"text/plain")
    assert orjson.loads(counted.body)["count"] > 0


@pytest.mark.parametrize("asked", [METRICS, TOKENIZE])
@pytest.mark.parametrize("headers", [(), CLIENT])
async def test_neither_a_client_s_key_nor_none_will_do(asked, headers):
    keys = (ApiKey(sha256=key_sha256("a-clients")),)
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys) as gateway:
        reply = await gateway.fetch(*asked, headers=headers)
    assert reply.status == 401


async def test_the_worker_is_asked_with_its_own_key_and_never_with_the_admins(tmp_path):
    heads = []

    async def answer(head, body, writer):
        heads.append(head)
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")

    (tmp_path / "key").write_text("the-engines\n")
    async with listening(answer) as worker:
        keyed = worker.model_copy(update={"name": "w0", "api_key_file": str(tmp_path / "key")})
        async with running_gateway([keyed]) as gateway:
            reply = await gateway.fetch(*TOKENIZE, {"prompt": "x"}, headers=ADMIN)
    assert reply.status == 404
    assert [b"authorization: Bearer the-engines" in head for head in heads] == [True]
    assert b"the-admins" not in heads[0]


async def test_an_unknown_worker_and_a_dead_one_are_named():
    dead = WorkerConfig(name="w0", url="http://127.0.0.1:9", model="fake-model")
    async with running_gateway([dead]) as gateway:
        unknown = await gateway.fetch("GET", "/phasewise/v1/workers/other/metrics", headers=ADMIN)
        silent = await gateway.fetch(*METRICS, headers=ADMIN)
        wrong = await gateway.fetch("POST", "/phasewise/v1/workers/w0/metrics", headers=ADMIN)
        nothing = await gateway.fetch("GET", "/phasewise/v1/workers/w0/other", headers=ADMIN)
    assert (unknown.status, silent.status, wrong.status, nothing.status) == (404, 503, 405, 404)
    assert b"no worker is named other" in unknown.body
    assert b"w0 does not answer: http://127.0.0.1:9 cannot be reached" in silent.body
