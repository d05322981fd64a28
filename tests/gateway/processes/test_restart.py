"""A gateway's processes are replaced by ones with the code and the file on disk, and no client notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys

import orjson
import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.gateway_process import GatewayProcess, home_of, running_process
from tests.gateway.harness import chat_body, events_of, eventually
from tests.gateway.processes.test_processes import ask, children, counted, serving

SETTINGS = {"admin_key_sha256": key_sha256("admin"), "drain_s": 30}
PATIENT = Timeouts(connect_s=30.0, head_s=60.0, idle_s=60.0)


async def restart(path):
    """`phasewise gateway --restart FILE`: its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "phasewise.cli", "gateway", "--restart", str(path)),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PHASEWISE_HOME": str(home_of(path))},
    )
    _, said = await asyncio.wait_for(process.communicate(), 240)
    return process.returncode, said.decode()


@contextlib.asynccontextmanager
async def asked_forever(url):
    """The outcomes of requests over new connections and over kept ones, until the block is left."""
    outcomes = []
    body = orjson.dumps(chat_body(max_tokens=2))

    async def ask_on():
        client = HttpClient(url, PATIENT)
        for number in range(1_000_000):
            if number % 2:
                client.close()
                client = HttpClient(url, PATIENT)
            try:
                outcomes.append((await client.fetch("POST", "/v1/chat/completions", body=body)).status)
            except UpstreamError as error:
                outcomes.append(error)

    tasks = [asyncio.create_task(ask_on()) for _ in range(4)]
    try:
        yield outcomes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("processes", "by"), [(1, "signal"), (2, "command")])
async def test_streams_go_on_nobody_is_refused_and_nothing_is_counted_twice(tmp_path, processes, by):
    path = tmp_path / "gateway.yaml"
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, processes=processes, keep_timelines=500, **SETTINGS) as gateway,
    ):
        await eventually(lambda: len(serving(tmp_path)) == processes)
        engine.inject("slow", factor=10.0)
        stream = orjson.dumps(chat_body(stream=True, max_tokens=60, ignore_eos=True))
        clients = [HttpClient(gateway.client.base_url, PATIENT) for _ in range(6)]
        streams = [
            asyncio.create_task(client.fetch("POST", "/v1/chat/completions", body=stream))
            for client in clients
        ]
        await eventually(lambda: engine.tokens_written > 30)
        # What a reload cannot change is changed too.
        path.write_text(path.read_text().replace("keep_timelines: 500", "keep_timelines: 7"))
        before, counts = set(children(gateway)), []
        async with asked_forever(gateway.client.base_url) as outcomes:
            if by == "command":
                assert (await restart(path))[0] == 0
            else:
                gateway.process.send_signal(signal.SIGUSR2)
            replies = await asyncio.gather(*streams)
            while before & set(children(gateway)):
                counts.append(counted((await ask(gateway, "/metrics")).body))
            served = len(outcomes)
            await eventually(lambda: len(outcomes) > served + 8)
        assert len(children(gateway)) == processes
        assert {events_of(reply.body)[-1] for reply in replies} == {"[DONE]"}
        assert set(outcomes) == {200}
        for client in clients:
            client.close()

        async def all_are_counted():
            counts.append(counted((await ask(gateway, "/metrics")).body))
            return counts[-1] >= len(outcomes) + len(streams)

        await eventually(all_are_counted)
        assert counts == sorted(counts)
        assert counts[-1] <= len(outcomes) + len(streams) + 4  # those that were cancelled
        missing = (await ask(gateway, "/phasewise/v1/requests/none-such")).body.decode()
        assert "the last 7 requests" in missing
        gateway.process.terminate()
        code, errors = await gateway.ended()
        assert (code, "Traceback" in errors) == (0, False), errors


async def test_a_successor_that_cannot_start_leaves_the_old_one_in_service(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        path = tmp_path / "gateway.yaml"
        good, pids = path.read_text(), children(gateway)
        elsewhere = tmp_path / "elsewhere.yaml"
        elsewhere.write_text(good.replace(f"port: {gateway.port}", f"port: {gateway.port - 1}"))
        code, said = await restart(elsewhere)
        assert (code, "no gateway of yours runs at" in said) == (2, True), said
        path.write_text(good.replace("gateway:\n", "gateway:\n  processes: 2\n"))
        code, said = await restart(path)
        assert (code, "gateway.processes needs a new start" in said) == (2, True), said
        assert children(gateway) == pids
        assert (await ask(gateway, "/health")).status == 200
        path.write_text(good)
        assert (await restart(path))[0] == 0
        assert children(gateway) != pids


async def test_what_was_learned_of_prefixes_goes_along(tmp_path):
    async with running_engines(2) as engines, running_process(tmp_path, *engines, **SETTINGS) as gateway:
        stories = [
            orjson.dumps(chat_body(f"story {number} " + "word " * 300, max_tokens=2)) for number in range(6)
        ]

        async def cached():
            """The share of prompt tokens that an engine had in its cache."""
            replies = [await ask(gateway, "/v1/chat/completions", "POST", (), story) for story in stories]
            usages = [orjson.loads(reply.body)["usage"] for reply in replies]
            known = sum((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0) for usage in usages)
            return known / sum(usage["prompt_tokens"] for usage in usages)

        await cached()
        assert (await restart(tmp_path / "gateway.yaml"))[0] == 0
        assert await cached() > 0.8


async def test_it_serves_on_a_socket_that_systemd_has_opened(tmp_path):
    given = socket.create_server(("127.0.0.1", 0))
    port = given.getsockname()[1]
    path = tmp_path / "gateway.yaml"
    command = ("-m", "phasewise.cli", "gateway", str(path))
    # As systemd does: the first socket is descriptor 3, and the process knows its own number.
    start = (
        f"import os, sys; os.dup2({given.fileno()}, 3); os.environ.update(LISTEN_PID=str(os.getpid()), "
        f"LISTEN_FDS='1'); os.execv(sys.executable, (sys.executable, *{command!r}))"
    )
    async with running_engines(1) as (engine,):
        worker = {"name": "w0", "url": engine.base_url, "model": engine.model}
        path.write_bytes(orjson.dumps({"gateway": {"port": port, "processes": 2}, "workers": [worker]}))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", start),
            pass_fds=[given.fileno()],
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PHASEWISE_HOME": str(home_of(path))},
        )
        gateway = GatewayProcess(process, port)
        # It was accepted before the gateway was there.
        assert (await gateway.client.fetch("GET", "/health")).status == 200
        process.terminate()
        code, errors = await gateway.ended()
        assert (code, re.findall("Traceback|error", errors)) == (0, []), errors
        gateway.client.close()
        # Whoever connects now waits for the next one.
        socket.create_connection(("127.0.0.1", port)).close()
        given.close()
