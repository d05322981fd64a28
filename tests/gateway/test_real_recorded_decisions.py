"""A gateway in front of a real vLLM decides in a replay as it did live."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.replay import replay
from phasewise.clients.http_client import Timeouts
from phasewise.fleet.config import QueueConfig
from tests.gateway.harness import running_gateway, worker_for

pytestmark = pytest.mark.real

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)
PROMPT = "The keeper of the lighthouse wrote down every ship that passed. " * 20


async def test_conversations_and_a_full_queue_replay_to_the_same_decisions(real_engine, tmp_path):
    path = tmp_path / "decisions"
    # The same engine under two names: there has to be something to decide.
    workers = [worker_for(real_engine, name, slots=1) for name in ("w0", "w1")]
    options = {"timeouts": PATIENT, "poll_interval_s": 1.0, "queue": QueueConfig(max_waiting=1)}
    async with running_gateway(workers, **options, record_decisions=str(path)) as gateway:
        fields = {"model": real_engine.model, "max_tokens": 4, "temperature": 0, "stream": True}
        for turn in range(3):
            said = [gateway.chat(f"{who}: {PROMPT} {'Go on. ' * turn}", **fields) for who in "abcde"]
            statuses = {it.status for it in await asyncio.gather(*said)}
            assert 200 in statuses
        assert (await gateway.reload(*workers, policy="least_outstanding")).status == 200
        assert (await gateway.chat("And now?", **fields)).status == 200
    result = replay(path.read_bytes().splitlines())
    assert result.difference is None
    assert result.identical == result.decisions >= 16
    assert result.grants
    assert result.rejected
