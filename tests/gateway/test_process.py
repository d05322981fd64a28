"""The gateway as a process: it starts from a file, and signals end it without cutting streams."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import orjson
import pytest
import yaml

from phasewise.adapters.http_client import HttpClient
from phasewise.errors import UpstreamError
from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import chat_body, events_of, eventually


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


async def start(path):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "phasewise.gateway", str(path), stderr=asyncio.subprocess.PIPE
    )


def write_file(folder, port, engine):
    path = folder / "gateway.yaml"
    workers = [{"name": "w0", "url": engine.base_url, "model": engine.model}]
    path.write_text(yaml.safe_dump({"gateway": {"port": port}, "workers": workers}))
    return path


async def answers(client):
    try:
        return (await client.fetch("GET", "/health")).status == 200
    except UpstreamError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_streams_finish_and_exits_cleanly(tmp_path, number):
    async with running_engines(1) as (engine,):
        engine.inject("slow", factor=10.0)
        port = free_port()
        process = await start(write_file(tmp_path, port, engine))
        client = HttpClient(f"http://127.0.0.1:{port}")
        try:
            await eventually(lambda: answers(client), timeout_s=20.0)
            body = orjson.dumps(chat_body(stream=True, max_tokens=40))
            sending = asyncio.create_task(client.fetch("POST", "/v1/chat/completions", body=body))
            await eventually(lambda: engine.tokens_written > 2)
            process.send_signal(number)
            assert events_of((await sending).body)[-1] == "[DONE]"
            _, errors = await asyncio.wait_for(process.communicate(), 15)
            assert process.returncode == 0
            assert b"Traceback" not in errors
        finally:
            client.close()
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gateway: {port: 99999}\nworkers: []\n", b"gateway.port"),
        (
            "gateway: {policy: best}\nworkers: [{name: a, url: 'http://x:1', model: m}]\n",
            b"least_outstanding",
        ),
        ("gateway: {}\nworkers: [{name: a, url: 'ftp://x', model: m}]\n", b"ftp://x"),
    ],
)
async def test_a_file_that_cannot_be_used_is_told_and_exits_with_2(tmp_path, text, told):
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    process = await start(path)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert told in errors
    assert b"Traceback" not in errors
