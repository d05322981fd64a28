"""The gateway behind proxies as they are installed: what an engine's clients do works there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import orjson
import pytest

from tests.deploy.proxies import envoy, haproxy, nginx, proxy_before
from tests.gateway.harness import chat_body, listening, running_gateway
from tests.gateway.server.test_client_timeouts import STREAM_HEAD, chunked, connected, event, head_of

UPLOAD_BYTES = 5_000_000


@pytest.mark.parametrize(
    "proxy", [nginx, haproxy, pytest.param(envoy, marks=pytest.mark.real)], ids=lambda proxy: proxy.__name__
)
async def test_chats_streams_uploads_and_health_pass_a_proxy_with_its_defaults(proxy, tmp_path):
    first_is_read = asyncio.Event()

    async def engine(_head, body, writer):
        if b'"stream":true' in body:
            writer.write(STREAM_HEAD + chunked(event("first")))
            await first_is_read.wait()
            rest = [event("second"), event(""), b"data: [DONE]\n\n"]
            writer.write(b"".join(map(chunked, rest)) + b"0\r\n\r\n")
            return
        said = {"choices": [{"index": 0, "message": {"content": str(len(body))}, "finish_reason": "stop"}]}
        reply = orjson.dumps(said)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply)

    async with (
        listening(engine) as worker,
        running_gateway([worker]) as gateway,
        proxy_before(proxy, tmp_path, gateway.url) as client,
    ):
        for body in (chat_body(), chat_body("word " * (UPLOAD_BYTES // 5))):
            data = orjson.dumps(body)
            reply = await client.fetch("POST", "/v1/chat/completions", body=data)
            assert reply.status == 200
            assert int(orjson.loads(reply.body)["choices"][0]["message"]["content"]) >= len(data)
        data = orjson.dumps(chat_body(stream=True))
        async with connected(SimpleNamespace(url=client.base_url)) as (reader, writer):
            writer.write(head_of(data, b"connection: close") + data)
            # The engine writes nothing more until the client has this.
            came = await asyncio.wait_for(reader.readuntil(b'"first"'), 60)
            first_is_read.set()
            came += await asyncio.wait_for(reader.read(), 60)
        assert came.startswith(b"HTTP/1.1 200 ")
        assert came.index(b'"first"') < came.index(b'"second"') < came.index(b"[DONE]")
