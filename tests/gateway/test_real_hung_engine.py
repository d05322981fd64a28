"""A real vLLM whose core stands still while its /health answers is taken out of service, and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from contextlib import contextmanager

import psutil
import pytest

from phasewise.clients.http_client import Timeouts
from phasewise.core.worker import Role
from phasewise.scheduling.world import Health
from tests.gateway.harness import events_of, eventually, request_id_of, running_gateway

pytestmark = pytest.mark.real

CHAT = "/v1/chat/completions"
PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=300.0)
LONG_ENOUGH_S = 120.0


@pytest.fixture
def workers(real_pair):
    """Both engines of the pair, each for whole requests."""
    return [worker.model_copy(update={"role": Role.MIXED, "pool": "main"}) for worker in real_pair.workers]


def core_of(engine):
    """The process that makes the engine's steps; its parent answers /health."""
    (core,) = (it for it in psutil.Process(engine.pid).children(recursive=True) if "EngineCore" in it.name())
    return core.pid


@contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def story(model, tokens):
    question = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
    return {"model": model, "messages": question, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": True}  # fmt: skip


def answers_health(engine):
    with urllib.request.urlopen(f"{engine.url}/health", timeout=30) as reply:
        return reply.status == 200


def streams(gateway):
    cluster, ledger = gateway.app.gateway.cluster, gateway.app.gateway.ledger
    return sum(ledger.load(state.worker.ref).streams for state in cluster.snapshot())


def health(gateway, name):
    return gateway.app.gateway.cluster.state(name).health


async def test_a_stopped_core_is_noticed_and_its_stream_goes_on_elsewhere(real_pair, workers):
    first, second = workers
    async with running_gateway([first], timeouts=PATIENT, poll_interval_s=0.25) as gateway:
        # Until the gateway has seen it work for a while it would be patient for two minutes.
        await gateway.fetch("POST", CHAT, story(real_pair.model, 60))
        asked = asyncio.create_task(gateway.fetch("POST", CHAT, story(real_pair.model, 200)))
        await eventually(lambda: streams(gateway) == 1)
        assert (await gateway.reload(first, second)).status == 200
        with stopped(core_of(real_pair.prefill)):
            await eventually(lambda: health(gateway, first.name) is Health.HUNG, LONG_ENOUGH_S)
            assert await asyncio.to_thread(answers_health, real_pair.prefill)
            reply = await asked
        *_, done = events_of(reply.body)
        timeline = await gateway.timeline(request_id_of(reply))
        assert done == "[DONE]"
        assert [it["kind"] for it in timeline["attempts"]] == ["local", "resumed"]
        assert timeline["out"] == 200
        await eventually(lambda: health(gateway, first.name) is Health.UP, LONG_ENOUGH_S)
