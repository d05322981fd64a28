"""A gateway is replaced by another one, and no client notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import orjson
import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.gateway_process import home_of, running_process, start
from tests.gateway.harness import chat_body, events_of, eventually

ADMIN = [(b"authorization", b"Bearer admin")]
SETTINGS = {"admin_key_sha256": key_sha256("admin"), "drain_s": 6}
PATIENT = Timeouts(connect_s=30.0, head_s=60.0, idle_s=60.0)


@contextlib.asynccontextmanager
async def taking_over(path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "phasewise.cli", "gateway", str(path), "--take-over"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PHASEWISE_HOME": str(home_of(path))},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.communicate(), 60)


async def ask_forever(url, outcomes):
    """New connections and kept ones, one request after the other."""
    client = HttpClient(url, PATIENT)
    body = orjson.dumps(chat_body(max_tokens=2))
    for number in range(1_000_000):
        if number % 2:
            client.close()
            client = HttpClient(url, PATIENT)
        try:
            outcomes.append((await client.fetch("POST", "/v1/chat/completions", body=body)).status)
        except UpstreamError as error:
            outcomes.append(error)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 3), (3, 1)])
async def test_streams_go_on_and_nobody_is_refused(tmp_path, before, after):
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, processes=before, **SETTINGS) as old,
    ):
        engine.inject("slow", factor=10.0)
        stream = orjson.dumps(chat_body(stream=True, max_tokens=60, ignore_eos=True))
        clients = [HttpClient(old.client.base_url, PATIENT) for _ in range(6)]
        streams = [
            asyncio.create_task(it.fetch("POST", "/v1/chat/completions", body=stream)) for it in clients
        ]
        outcomes = []
        asking = [asyncio.create_task(ask_forever(old.client.base_url, outcomes)) for _ in range(4)]
        await eventually(lambda: engine.tokens_written > 30)
        path = tmp_path / "gateway.yaml"
        path.write_text(path.read_text().replace(f"processes: {before}", f"processes: {after}"))
        async with taking_over(path) as new:
            code, errors = await old.ended()
            assert (code, "Traceback" in errors) == (0, False), errors
            for reply in await asyncio.gather(*streams):
                assert events_of(reply.body)[-1] == "[DONE]"
            served = len(outcomes)
            await eventually(lambda: len(outcomes) > served + 8)
            assert set(outcomes) == {200}
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            new.terminate()
            _, said = await asyncio.wait_for(new.communicate(), 60)
            assert (new.returncode, b"Traceback" in said) == (0, False), said
        for it in clients:
            it.close()


async def test_a_limit_that_is_used_up_stays_so(tmp_path):
    key = {"sha256": key_sha256("client"), "requests_per_minute": 1}
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, api_keys=[key], **SETTINGS) as old,
    ):
        bearer, body = [(b"authorization", b"Bearer client")], orjson.dumps(chat_body(max_tokens=1))

        async def one():
            client = HttpClient(old.client.base_url, PATIENT)
            try:
                return (await client.fetch("POST", "/v1/chat/completions", headers=bearer, body=body)).status
            finally:
                client.close()

        assert await one() == 200
        async with taking_over(tmp_path / "gateway.yaml"):
            assert (await old.ended())[0] == 0
            assert await one() == 429


async def test_without_a_gateway_to_replace_it_says_so(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as old:
        path = tmp_path / "gateway.yaml"
        elsewhere = tmp_path / "elsewhere.yaml"
        elsewhere.write_text(path.read_text().replace(f"port: {old.port}", f"port: {old.port - 1}"))
        async with taking_over(elsewhere) as process:
            _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 2
        assert b"no gateway of yours runs at" in errors
        assert b"leave out --take-over" in errors


async def test_a_file_that_cannot_be_used_leaves_the_old_one_in_service(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as old:
        path = tmp_path / "gateway.yaml"
        path.write_text(path.read_text() + "\nnonsense: 1\n")
        process = await start(path)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 2, errors
        async with taking_over(path) as process:
            await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 2
        assert (await old.client.fetch("GET", "/health")).status == 200
