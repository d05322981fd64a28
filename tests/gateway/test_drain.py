"""Streams when the gateway stops, and engines when clients leave: over real sockets and a real process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket

import orjson
import pytest
from openai import AsyncOpenAI

from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import GatewayConfig, GatewayFile
from phasewise.gateway.app import build_app
from phasewise.gateway.processes import child
from tests.gateway.gateway_process import running_process
from tests.gateway.harness import chat_body, events_of, eventually, running_gateway, waiting_in, worker_for

STREAMS = 20
FOR_EVER = 5000


def stream_body(number, max_tokens):
    return orjson.dumps(
        chat_body(f"story {number}", stream=True, max_tokens=max_tokens, ignore_eos=True, temperature=0)
    )


async def text_of(client, body):
    """The answer's text, or what ended it early."""
    events = events_of((await client.fetch("POST", "/v1/chat/completions", body=body)).body)
    if events[-1] != "[DONE]":
        return events[-1]["error"]["code"]
    return "".join(
        choice["delta"].get("content") or "" for event in events[:-1] for choice in event["choices"]
    )


async def test_streams_that_are_open_when_it_stops_are_whole_in_the_end(tmp_path):
    bodies = [stream_body(number, 60) for number in range(STREAMS)]
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, slots=STREAMS // 2) as gateway,
    ):
        bare = HttpClient(engine.base_url)
        wanted = [await text_of(bare, body) for body in bodies]
        bare.close()
        written = engine.tokens_written
        engine.inject("slow", factor=30.0)
        sending = [asyncio.create_task(text_of(gateway.client, body)) for body in bodies]
        await eventually(lambda: engine.tokens_written > written + STREAMS, timeout_s=30.0)
        gateway.process.send_signal(signal.SIGTERM)
        await eventually(gateway.rejects_connections, timeout_s=30.0)
        assert not all(task.done() for task in sending)
        assert await asyncio.gather(*sending) == wanted
        code, errors = await gateway.ended()
    assert code == 0
    assert "Traceback" not in errors


async def test_the_log_says_what_a_stopping_gateway_waits_for_and_a_second_signal_ends_it_quietly(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, drain_s=100.0) as gateway:
        engine.inject("slow", factor=30.0)
        open_stream = asyncio.create_task(text_of(gateway.client, stream_body(0, FOR_EVER)))
        await eventually(lambda: engine.tokens_written > 2, timeout_s=30.0)
        gateway.process.send_signal(signal.SIGINT)
        await eventually(gateway.rejects_connections, timeout_s=30.0)
        gateway.process.send_signal(signal.SIGINT)
        code, errors = await gateway.ended()
        await asyncio.gather(open_stream, return_exceptions=True)
    assert code == 0
    assert "stopping: waits up to 100 s for 1 request to finish; a second signal ends at once" in errors
    assert "stopped with 1 request unfinished" in errors
    assert "lifespan" not in errors
    assert "CancelledError" not in errors


async def test_what_outlasts_the_time_to_finish_gets_an_error(tmp_path):
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, slots=2, drain_s=1.0) as gateway,
    ):
        engine.inject("slow", factor=30.0)
        begun = [asyncio.create_task(text_of(gateway.client, stream_body(n, FOR_EVER))) for n in range(2)]
        await eventually(lambda: engine.tokens_written > 4, timeout_s=30.0)
        body = stream_body("that waits in the queue", 8)
        waiting = asyncio.create_task(gateway.client.fetch("POST", "/v1/chat/completions", body=body))
        await eventually(lambda: is_waiting(gateway.client, 1))
        gateway.process.send_signal(signal.SIGTERM)
        assert await asyncio.gather(*begun) == ["stream_gateway_stopped"] * 2
        rejected = await waiting
        code, errors = await gateway.ended()
    assert (rejected.status, orjson.loads(rejected.body)["error"]["code"]) == (503, "gateway_stopped")
    assert int(dict(rejected.headers)[b"retry-after"]) >= 1
    assert code == 0
    assert "Traceback" not in errors


class _Server(child.GatewayServer):
    @contextlib.contextmanager
    def capture_signals(self):
        yield


async def test_a_connection_that_is_open_at_the_stop_gets_one_answer_more(monkeypatch):
    monkeypatch.setattr(child, "IDLE_S", 60.0)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with running_engines(1) as (engine,):
        file = GatewayFile(gateway=GatewayConfig(port=port), workers=[worker_for(engine)])
        app = build_app(file)
        server = _Server(child.server_config(file, app), app.edge)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await eventually(lambda: server.started)
        used, fresh = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert b"connection: close" not in await health_by(used)
        server.should_exit = True
        # In the kernel's queue of connections as the stop begins.
        queued = socket.create_connection(("127.0.0.1", port))
        await eventually(lambda: not server.servers[0].is_serving())
        for connection in (used, fresh, await asyncio.open_connection(sock=queued)):
            assert b"connection: close" in await health_by(connection)
            assert await connection[0].read() == b""
            connection[1].close()
        await asyncio.wait_for(serving, 20.0)


async def health_by(connection):
    """The head of an answer over this connection."""
    reader, writer = connection
    writer.write(b"HEAD /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    return head


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_does_not_wait(tmp_path, number):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, drain_s=3600.0) as gateway:
        engine.inject("slow", factor=100.0)
        sending = asyncio.create_task(text_of(gateway.client, stream_body(1, FOR_EVER)))
        await eventually(lambda: engine.tokens_written > 2, timeout_s=30.0)
        gateway.process.send_signal(number)
        await eventually(gateway.rejects_connections, timeout_s=30.0)
        assert not sending.done()
        gateway.process.send_signal(number)
        code, errors = await gateway.ended()
        assert await sending == "stream_gateway_stopped"
    assert code == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize("slots", [STREAMS, STREAMS // 2])
async def test_work_for_clients_who_left_in_mid_stream_is_given_up(slots):
    async with running_engines(1) as (engine,), running_gateway([worker_for(engine, slots=slots)]) as gateway:
        engine.inject("slow", factor=30.0)
        bodies = [stream_body(number, FOR_EVER) for number in range(STREAMS)]
        sending = [asyncio.create_task(text_of(gateway.client, body)) for body in bodies]
        await eventually(lambda: engine.tokens_written > 2 * slots, timeout_s=30.0)
        assert gateway.under_way == slots
        await leave(sending)
        await eventually(lambda: not engine.engine.has_work, timeout_s=30.0)
        await eventually(lambda: gateway.under_way == 0)
        assert await is_waiting(gateway.client, 0)
        assert engine.requests_finished == 0


async def test_work_for_clients_who_left_before_the_first_token_is_given_up():
    async with running_engines(1) as (engine,), running_gateway([worker_for(engine, slots=3)]) as gateway:
        # Steps of ten seconds: nothing comes of the first one while the clients are there.
        engine.inject("slow", factor=10_000.0)
        sending = [asyncio.create_task(text_of(gateway.client, stream_body(n, 4))) for n in range(6)]
        await eventually(lambda: is_waiting(gateway.client, 3), timeout_s=30.0)
        engine.clear_faults()
        await leave(sending)
        await eventually(lambda: gateway.under_way == 0)
        assert await is_waiting(gateway.client, 0)
        # The step under way ends, and no other follows it.
        await eventually(lambda: not engine.engine.has_work, timeout_s=60.0)
        assert engine.requests_finished == 0


async def is_waiting(client, count):
    return await waiting_in(client) == count


async def leave(sending):
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)


@pytest.mark.real
async def test_a_real_engine_stops_writing_for_a_handful_of_clients_who_leave(real_engine):
    async def running():
        engine = HttpClient(real_engine.base_url)
        try:
            return (await fetch_metrics(engine)).gauge("num_requests_running")
        finally:
            engine.close()

    async def all_run():
        return await running() == 5

    async def none_runs():
        return await running() == 0

    async with running_gateway([real_engine], poll_interval_s=1.0) as gateway:
        async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:

            async def read(number):
                stream = await client.chat.completions.create(
                    model=real_engine.model, max_tokens=2000, stream=True, extra_body={"ignore_eos": True},
                    messages=[{"role": "user", "content": f"Tell me story number {number}."}],
                )  # fmt: skip
                async for _ in stream:
                    pass

            reading = [asyncio.create_task(read(number)) for number in range(5)]
            await eventually(all_run, timeout_s=120.0)
            await leave(reading)
        await eventually(none_runs, timeout_s=60.0)
        assert gateway.under_way == 0
