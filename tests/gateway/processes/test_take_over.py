"""A gateway is replaced by another one, and no client notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import orjson
import psutil
import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.local.gateway_run import living_gateways
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.gateway_process import home_of, running_process, start
from tests.gateway.harness import chat_body, events_of, eventually
from tests.gateway.processes.test_processes import counted

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


async def chats(url, count, headers=()):
    """The statuses of so many requests, each over a connection of its own."""

    async def one():
        client = HttpClient(url, PATIENT)
        try:
            body = orjson.dumps(chat_body(max_tokens=1))
            return (await client.fetch("POST", "/v1/chat/completions", headers=headers, body=body)).status
        finally:
            client.close()

    return await asyncio.gather(*(one() for _ in range(count)))


async def leaves(gateway, home):
    """Wait until it accepts no more: whoever asks is answered by the one that took over."""
    await eventually(lambda: gateway.process.pid not in [it.process.pid for it in living_gateways(home)])


async def test_a_process_of_the_old_one_that_dies_while_it_leaves_is_not_replaced(tmp_path):
    settings = {**SETTINGS, "processes": 3, "drain_s": 30}
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **settings) as old:
        engine.inject("slow", factor=20.0)
        stream = orjson.dumps(chat_body(stream=True, max_tokens=60, ignore_eos=True))
        clients = [HttpClient(old.client.base_url, PATIENT) for _ in range(9)]
        streams = [
            asyncio.create_task(it.fetch("POST", "/v1/chat/completions", body=stream)) for it in clients
        ]
        await eventually(lambda: engine.tokens_written > 20)
        path = tmp_path / "gateway.yaml"
        key = {"sha256": key_sha256("client")}
        path.write_text(path.read_text().replace("gateway:\n", f"gateway:\n  api_keys: [{key}]\n"))
        async with taking_over(path):
            await leaves(old, home_of(path))
            os.kill(psutil.Process(old.process.pid).children()[0].pid, signal.SIGKILL)
            await asyncio.sleep(2)
            assert len(psutil.Process(old.process.pid).children()) < 3
            assert set(await chats(old.client.base_url, 24)) == {401}
            for it in (*streams, *clients):
                it.cancel() if isinstance(it, asyncio.Task) else it.close()
            await asyncio.gather(*streams, return_exceptions=True)


async def test_of_several_that_take_over_at_once_the_last_one_serves(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as old:
        path = tmp_path / "gateway.yaml"
        home = home_of(path)
        async with taking_over(path) as first, taking_over(path) as second, taking_over(path) as third:
            waiting = [asyncio.create_task(it.wait()) for it in (old.process, first, second, third)]
            async with asyncio.timeout(60):
                while sum(it.done() for it in waiting) < 3:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=1)
            await eventually(lambda: len(living_gateways(home)) == 1)
            assert set(await chats(old.client.base_url, 12)) == {200}
            for it in waiting:
                it.cancel()


@pytest.mark.parametrize(("before", "after"), [(3, 1), (2, 2)])
async def test_what_ends_on_the_old_one_is_counted(tmp_path, before, after):
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, processes=before, **SETTINGS) as old,
    ):
        engine.inject("slow", factor=10.0)
        stream = orjson.dumps(chat_body(stream=True, max_tokens=40, ignore_eos=True))
        clients = [HttpClient(old.client.base_url, PATIENT) for _ in range(8)]
        streams = [
            asyncio.create_task(it.fetch("POST", "/v1/chat/completions", body=stream)) for it in clients
        ]
        await eventually(lambda: engine.tokens_written > 20)
        path = tmp_path / "gateway.yaml"
        path.write_text(path.read_text().replace(f"processes: {before}", f"processes: {after}"))
        async with taking_over(path):
            await asyncio.gather(*streams)
            for it in clients:
                it.close()
            await old.ended()
            fresh = HttpClient(old.client.base_url, PATIENT)
            assert counted((await fresh.fetch("GET", "/metrics")).body) == 8
            fresh.close()
