"""A real vLLM goes on with an answer that broke off, and writes what it would have written.

One engine is both workers: a cutter stands before it as the first and drops the connection in mid-answer.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from benchmarks.resuming.asking import CHAT, COMPLETIONS, text_of
from benchmarks.resuming.near_tie import NEAR_TIE_NATS
from benchmarks.resuming.undisturbed import undisturbed
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.fleet.config import WorkerConfig
from tests.gateway.harness import events_of, request_id_of, running_gateway
from tests.raw_server import raw_server

pytestmark = pytest.mark.real

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)


class Cutter:
    """Passes bytes on to an engine, and drops the connection once, after so many events of an answer."""

    def __init__(self, port, after_events):
        self.port = port
        self.events_left = after_events
        self.cuts = 0

    async def serve(self, reader, writer):
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await asyncio.gather(
                self._pass_on(reader, engine_writer), self._pass_on(engine_reader, writer, cuts=True)
            )
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, engine_writer):
                end.transport.abort()

    async def _pass_on(self, reader, writer, *, cuts=False):
        while data := await reader.read(65536):
            if cuts and self.events_left > 0:
                self.events_left -= data.count(b"data: ")
                if self.events_left <= 0:
                    self.cuts += 1
                    raise ConnectionError
            writer.write(data)
        writer.close()


@contextlib.asynccontextmanager
async def cut_off(engine, after_events):
    """A gateway whose first worker breaks off in mid-answer; the second is the engine itself."""
    cutter = Cutter(int(engine.base_url.rpartition(":")[2]), after_events)
    async with raw_server(cutter.serve) as port:
        workers = [
            WorkerConfig(name="w0", url=f"http://127.0.0.1:{port}", model=engine.model),
            WorkerConfig(name="w1", url=engine.base_url, model=engine.model),
        ]
        async with running_gateway(workers, timeouts=PATIENT, poll_interval_s=60.0) as gateway:
            yield gateway, cutter


@pytest.fixture
async def engine_client(real_engine):
    client = HttpClient(real_engine.base_url, PATIENT)
    yield client
    client.close()


@pytest.mark.parametrize("after_events", [3, 10, 30])
async def test_a_chat_taken_up_elsewhere_reads_as_if_nothing_had_happened(
    real_engine, engine_client, after_events
):
    story = [{"role": "user", "content": "Tell me a story about a lighthouse and its ships."}]
    body = {"model": real_engine.model, "messages": story, "temperature": 0, "max_tokens": 40}
    expected = await undisturbed(engine_client, CHAT, body)
    async with cut_off(real_engine, after_events) as (gateway, cutter):
        options = {"stream": True, "stream_options": {"include_usage": True}}
        reply = await gateway.fetch("POST", CHAT, body | options)
        timeline = await gateway.timeline(request_id_of(reply))
    *chunks, usage, done = events_of(reply.body)
    assert (cutter.cuts, done) == (1, "[DONE]")
    assert [it["kind"] for it in timeline["attempts"]] == ["local", "resumed"]
    assert timeline["outcome"] == "succeeded"
    assert {it["id"] for it in (*chunks, usage)} == {f"chatcmpl-{request_id_of(reply)}"}
    gap = await expected.gap_where_it_parts(engine_client, "".join(map(text_of, chunks)))
    assert gap is None or gap < NEAR_TIE_NATS
    assert usage["usage"]["prompt_tokens"] == len(expected.prompt_ids)
    assert usage["usage"]["completion_tokens"] == 40
    assert timeline["out"] == 40


async def test_a_completion_taken_up_elsewhere_goes_on_too(real_engine, engine_client):
    prompt = "The ships in the harbour were"
    body = {"model": real_engine.model, "prompt": prompt, "temperature": 0, "max_tokens": 24}
    expected = await undisturbed(engine_client, COMPLETIONS, body)
    async with cut_off(real_engine, 8) as (gateway, cutter):
        reply = await gateway.fetch("POST", COMPLETIONS, body | {"stream": True})
    *chunks, done = events_of(reply.body)
    assert (cutter.cuts, done) == (1, "[DONE]")
    gap = await expected.gap_where_it_parts(engine_client, "".join(map(text_of, chunks)))
    assert gap is None or gap < NEAR_TIE_NATS
