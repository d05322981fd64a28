"""Envoy in front of two gateways, as the page and deploy/envoy/gateways.yaml have it, with the real Envoy."""

from __future__ import annotations

import asyncio
import contextlib

import orjson
import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from phasewise.fake_engine.fleet import running_engines
from tests.deploy.envoy import envoy_program
from tests.gateway.gateway_process import running_process
from tests.gateway.harness import chat_body, events_of, eventually
from tests.paths import ROOT
from tests.real_engine import free_port

pytestmark = pytest.mark.real

CONFIG = (ROOT / "deploy" / "envoy" / "gateways.yaml").read_text()
PATIENT = Timeouts(connect_s=30.0, head_s=60.0, idle_s=60.0)


@contextlib.asynccontextmanager
async def envoy_before(folder, *gateways):
    """Envoy with the file of the page, at ports of this test."""
    port, text = free_port(), CONFIG
    for written, own in zip((10000, 8080, 8081), (port, *gateways), strict=True):
        text = text.replace(f"port_value: {written}}}", f"port_value: {own}}}")
    (folder / "envoy.yaml").write_text(text)
    process = await asyncio.create_subprocess_exec(
        str(envoy_program()), "--config-path", str(folder / "envoy.yaml"), "--use-dynamic-base-id",
        "--concurrency", "1", "--log-level", "error",
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)


async def ask(address, method, path, body=b""):
    client = HttpClient(address, PATIENT)
    try:
        return await client.fetch(method, path, body=body)
    finally:
        client.close()


async def test_streams_pass_as_they_come_and_a_gateway_that_drains_is_left_alone(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path / "one", engine, drain_s=30) as one,
        running_process(tmp_path / "two", engine, drain_s=30) as two,
        envoy_before(tmp_path, one.port, two.port) as address,
    ):

        async def answers():
            with contextlib.suppress(UpstreamError):
                return (await ask(address, "GET", "/health")).status == 200

        await eventually(answers)
        for path in ("/metrics", "/%6detrics", "/phasewise/v1/workers", "/%70hasewise/", "//metrics"):
            assert (await ask(address, "GET", path)).status == 404
        engine.inject("slow", factor=10.0)
        stream = orjson.dumps(chat_body(stream=True, max_tokens=40, ignore_eos=True))
        streams = [
            asyncio.create_task(ask(address, "POST", "/v1/chat/completions", stream)) for _ in range(8)
        ]
        await eventually(lambda: engine.tokens_written > 20)
        one.process.terminate()
        short = orjson.dumps(chat_body(max_tokens=1))
        replies = [await ask(address, "POST", "/v1/chat/completions", short) for _ in range(12)]
        assert [it.body for it in replies if it.status != 200] == []
        for reply in await asyncio.gather(*streams):
            assert events_of(reply.body)[-1] == "[DONE]"
        assert (await one.ended())[0] == 0
