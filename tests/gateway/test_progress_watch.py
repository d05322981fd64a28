"""A worker whose core stands still while /health answers: noticed, left alone, and trusted again."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phasewise.engines.vllm import read_page
from phasewise.fake_engine.fleet import running_engines
from phasewise.scheduling import progress
from phasewise.scheduling.world import Health
from tests.gateway.harness import ADMIN, chat_body, events_of, eventually, request_id_of, running_gateway

METRICS = b"""\
# HELP vllm:generation_tokens_total tokens
vllm:generation_tokens_total{engine="0",model_name="m"} 12.0
vllm:generation_tokens_total{engine="1",model_name="m"} 7.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 40.0
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="discard_all"} 0.0
"""


@pytest.fixture
def impatient(monkeypatch):
    """Hung after half a second; looked at every twentieth."""
    monkeypatch.setattr(progress, "SOONEST_S", 0.5)
    monkeypatch.setattr(progress, "TIMES", 1.0)
    monkeypatch.setattr(progress, "NOT_FITTED_S", 3.0)


def gateway_before(engines):
    return running_gateway(engines, poll_interval_s=0.05)


def health(gateway, name="w0"):
    return gateway.app.gateway.cluster.state(name).health


async def warmed(gateway, engines):
    """Every worker has served for a while, so that its steps are known."""
    body = chat_body("warm up", stream=True, max_tokens=40, ignore_eos=True)
    for _ in range(4):
        await asyncio.gather(*(gateway.fetch("POST", "/v1/chat/completions", body) for _ in engines * 2))


def test_ranks_are_read_from_metrics():
    ranks = read_page(METRICS, 5.0).ranks
    assert ranks["0"].signs == (12.0, 40.0)
    assert (ranks["0"].running, ranks["0"].asleep) == (False, True)
    assert (ranks["1"].running, ranks["1"].asleep) == (True, False)
    assert read_page(b"llama_tokens_total 3\n", 5.0).ranks == {}


async def test_streams_of_a_hung_core_are_resumed_elsewhere_and_it_returns_when_it_steps_again(impatient):
    async with running_engines(2) as engines, gateway_before(engines) as gateway:
        await warmed(gateway, engines)
        engines[0].inject("core_hang")
        body = chat_body("a longer story", stream=True, max_tokens=30, ignore_eos=True)
        asked = [gateway.fetch("POST", "/v1/chat/completions", body) for _ in range(6)]
        replies = await asyncio.wait_for(asyncio.gather(*asked), 30.0)
        assert all(events_of(reply.body)[-1] == "[DONE]" for reply in replies)
        assert health(gateway).stands_still
        assert "answers /health but has made no step for" in gateway.app.gateway.cluster.state("w0").note
        records = [await gateway.timeline(request_id_of(reply)) for reply in replies]
        assert any(len(it["attempts"]) == 2 for it in records)
        metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
        assert 'phasewise_worker_stands_still{worker="w0",pool="default"} 1' in metrics
        engines[0].clear_faults()
        await eventually(lambda: health(gateway) is Health.UP)
        workers = orjson.loads((await gateway.fetch("GET", "/phasewise/v1/workers", headers=ADMIN)).body)
        assert [it["note"] for it in workers["workers"]] == ["", ""]


async def test_the_last_worker_is_never_taken_out_but_is_spoken_of(impatient):
    async with running_engines(1) as engines, gateway_before(engines) as gateway:
        await warmed(gateway, engines)
        engines[0].inject("core_hang")
        asked = asyncio.create_task(gateway.chat("hello"))
        await eventually(lambda: "has made no step" in gateway.app.gateway.cluster.state("w0").note)
        assert health(gateway) is Health.UP
        engines[0].clear_faults()
        assert (await asked).status == 200
        await eventually(lambda: not gateway.app.gateway.cluster.state("w0").note)


async def test_an_engine_that_is_slow_but_steps_is_left_alone(impatient):
    async with running_engines(2) as engines, gateway_before(engines) as gateway:
        await warmed(gateway, engines)
        for engine in engines:
            engine.inject("slow", factor=10.0)
        replies = await asyncio.gather(*(gateway.chat("slow", max_tokens=20) for _ in range(4)))
        assert {reply.status for reply in replies} == {200}
        assert {health(gateway, name) for name in ("w0", "w1")} == {Health.UP}
        records = [await gateway.timeline(request_id_of(reply)) for reply in replies]
        assert all(len(it["attempts"]) == 1 for it in records)
