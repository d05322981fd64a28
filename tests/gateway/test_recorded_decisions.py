"""A gateway's record replays to the same decisions, one by one, and a changed record does not."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.replay import replay
from phasewise.core.errors import ConfigError
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import GatewayConfig, QueueConfig
from phasewise.gateway.records.decision_file import DecisionFile
from tests.gateway.harness import running_gateway, worker_for
from tests.gateway.pairs import LONG_TEXT, running_pair


def recorded(path):
    return path.read_bytes().splitlines(keepends=True)


async def test_conversations_replay_to_the_same_placements(tmp_path):
    path = tmp_path / "decisions"
    async with running_engines(3) as engines, running_gateway(engines, record_decisions=str(path)) as gateway:
        for turn in range(1, 4):
            said = [gateway.chat(f"{who} {LONG_TEXT}" + " and more" * turn) for who in "abcd"]
            assert {it.status for it in await asyncio.gather(*said)} == {200}
    result = replay(recorded(path))
    assert (result.requests, result.decisions, result.identical) == (12, 12, 12)
    assert result.complete
    assert result.difference is None


async def test_a_full_queue_a_dead_engine_and_a_reload_replay_to_the_same_decisions(tmp_path):
    path = tmp_path / "decisions"
    async with running_engines(2) as engines:
        workers = [worker_for(it, f"w{at}", slots=2) for at, it in enumerate(engines)]
        options = {"queue": QueueConfig(max_waiting=3), "record_decisions": str(path)}
        async with running_gateway(workers, **options) as gateway:
            burst = [gateway.chat(f"{LONG_TEXT} {at}", max_tokens=40) for at in range(16)]
            statuses = [it.status for it in await asyncio.gather(*burst)]
            assert 200 in statuses
            assert 429 in statuses or 503 in statuses
            assert (await gateway.reload(*workers, policy="least_outstanding")).status == 200
            await engines[0].stop()
            later = [gateway.chat(f"later {at}") for at in range(8)]
            await asyncio.gather(*later)
            assert (await gateway.reload(workers[1], policy="round_robin")).status == 200
            assert (await gateway.chat("at last")).status == 200
    result = replay(recorded(path))
    assert result.difference is None
    assert result.identical == result.decisions
    assert result.rejected
    assert result.grants


@pytest.mark.parametrize("when", ["always", "auto"])
async def test_disaggregated_requests_replay_to_the_same_decisions(tmp_path, when):
    path = tmp_path / "decisions"
    options = {"kv_transfer": {"when": when}, "record_decisions": str(path)}
    async with running_pair(2, 2, **options) as pair:
        for turn in range(4):
            said = [pair.gateway.chat(f"{who} {LONG_TEXT} {turn}", stream=who == "a") for who in "abcd"]
            assert {it.status for it in await asyncio.gather(*said)} == {200}
    result = replay(recorded(path))
    assert result.difference is None
    assert result.identical == result.decisions >= 16


async def test_the_record_holds_no_text_and_no_key(tmp_path):
    path = tmp_path / "decisions"
    async with running_engines(2) as engines, running_gateway(engines, record_decisions=str(path)) as gateway:
        await gateway.chat("a confidential question " * 60)
    content = path.read_bytes()
    assert b"confidential" not in content
    assert path.stat().st_mode & 0o077 == 0
    request = next(it for it in map(json.loads, content.splitlines()) if it.get("event") == "request")
    assert request["arguments"][1].keys() <= {
        *("is", "request_id", "endpoint", "model", "arrived_s", "prompt_bytes", "max_output_tokens"),
        *("prefix_hashes", "splittable", "stream", "conversation"),
    }


def test_a_full_file_ends_the_record_and_not_the_gateway(tmp_path, caplog):
    file = DecisionFile(tmp_path / "decisions", most_bytes=300)
    for number in range(100):
        file.write({"event": "closed", "arguments": [number]})
    file.close()
    lines = recorded(tmp_path / "decisions")
    assert json.loads(lines[-1]) == {"event": "end", "arguments": ["full"]}
    assert len(lines) < 10
    assert "no longer recorded" in caplog.text


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="record_decisions"):
        DecisionFile(tmp_path / "missing" / "decisions")


def test_several_processes_cannot_record():
    with pytest.raises(ValueError, match="record_decisions records one process"):
        GatewayConfig(record_decisions="decisions", processes=2)
