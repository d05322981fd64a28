"""The gateway as a process: it starts from a file, and signals end it without cutting streams."""

from __future__ import annotations

import asyncio
import resource
import signal
from pathlib import Path

import orjson
import pytest

from phasewise.clients.host import ENOUGH
from phasewise.core.errors import ConfigError
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import GatewayFile
from phasewise.gateway.processes import start as starting
from phasewise.gateway.processes.order import GatewaySource
from tests.gateway.gateway_process import running_process, start
from tests.gateway.harness import chat_body, events_of, eventually
from tests.real_engine import free_port


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_streams_finish_and_exits_cleanly(tmp_path, number):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine) as gateway:
        engine.inject("slow", factor=10.0)
        body = orjson.dumps(chat_body(stream=True, max_tokens=40))
        sending = asyncio.create_task(gateway.client.fetch("POST", "/v1/chat/completions", body=body))
        await eventually(lambda: engine.tokens_written > 2)
        gateway.process.send_signal(number)
        assert events_of((await sending).body)[-1] == "[DONE]"
        code, errors = await gateway.ended()
        assert code == 0
        assert "Traceback" not in errors


def children_of(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [Path(f"/proc/{child}") for task in tasks for child in task.read_text().split()]


async def test_a_gateway_that_is_killed_leaves_no_process_behind(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine) as gateway:
        (process,) = children_of(gateway.process.pid)
        # It reads large bodies, and is there before the first one comes.
        (reader,) = await eventually(lambda: children_of(int(process.name)))
        gateway.process.kill()
        await gateway.ended()
        await eventually(lambda: not process.exists() and not reader.exists())


async def test_it_takes_as_many_sockets_as_the_system_lets_it(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        async with running_engines(1) as (engine,), running_process(tmp_path, engine) as gateway:
            limits = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limits[0] == (hard if hard != resource.RLIM_INFINITY else ENOUGH)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("gateway: {port: 99999}\nworkers: []\n", b"gateway.port"),
        (
            "gateway: {policy: best, port: PORT}\nworkers: [{name: a, url: 'http://x:1', model: m}]\n",
            b"least_outstanding",
        ),
        ("gateway: {port: PORT}\nworkers: [{name: a, url: 'ftp://x', model: m}]\n", b"ftp://x"),
    ],
)
async def test_a_file_that_cannot_be_used_is_reported_and_exits_with_2(tmp_path, text, reported):
    path = tmp_path / "gateway.yaml"
    path.write_text(text.replace("PORT", str(free_port())))
    process = await start(path)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert reported in errors
    assert b"Traceback" not in errors


def test_without_a_folder_for_sockets_it_says_what_it_needs(monkeypatch):
    def fails(prefix):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(starting, "mkdtemp", fails)
    worker = {"name": "w0", "url": "http://127.0.0.1:9", "model": "m"}
    file = GatewayFile.model_validate({"gateway": {}, "workers": [worker]})
    with pytest.raises(ConfigError, match="Read-only file system") as reported:
        starting.start_gateway(file, GatewaySource(), None, None)
    assert "tmpfs" in reported.value.hint
