"""Engines in real time: steps last what they cost, and many share a process."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import mean, median

import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.clients.step_feed import StepFeed
from phasewise.core.errors import EngineStartFailed
from phasewise.costs.fit.step import StepCost
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.simulator.engine import EngineShape
from tests.contract.engine_calls import (
    CHAT,
    COMPLETIONS,
    STREAM,
    chat_body,
    completion_body,
    post_json,
    stream,
)

FIVE_MS_STEPS = StepCost(0.005, 10_000, 0.0, 0.0, 0.0, 0.0)


async def test_steps_last_what_they_cost_and_do_not_drift():
    async with running_engines(1, FakeEngineConfig(cost=FIVE_MS_STEPS)) as (engine,):
        client = HttpClient(engine.base_url)
        started_s = time.monotonic()
        async with await client.send(
            "POST", CHAT, body=chat_body(engine.model, max_tokens=100, **STREAM)
        ) as reply:
            arrivals_s = []
            while part := await reply.read():
                if b'"content":" t' in part:
                    arrivals_s.append(time.monotonic())
        client.close()
    gaps_s = [after - before for before, after in pairwise(arrivals_s)]
    assert median(gaps_s) == pytest.approx(0.005, abs=0.0015)
    assert arrivals_s[-1] - started_s == pytest.approx(0.5, abs=0.1)


async def test_twenty_engines_serve_from_one_process():
    async with running_engines(20) as engines:
        clients = [HttpClient(engine.base_url) for engine in engines]
        body = chat_body(engines[0].model, max_tokens=30, **STREAM)
        seen = await asyncio.gather(*(stream(client, CHAT, body) for client in clients for _ in range(3)))
        for client in clients:
            client.close()
    assert len(seen) == 60
    assert {one.text for one in seen} == {seen[0].text}
    assert all(len(one.content) == 30 for one in seen)
    # Twenty at a millisecond per step are more than one core can do beside a test; they must stay usable.
    assert mean(one.wall_s for one in seen) < 3.0


async def test_a_stream_is_taken_up_on_another_engine_from_its_text():
    async with running_engines(2) as (first, second):
        here, there = HttpClient(first.base_url), HttpClient(second.base_url)
        asked = [{"role": "user", "content": "Go on."}]
        whole = await stream(here, CHAT, chat_body(first.model, messages=asked, max_tokens=12, **STREAM))
        begun = " ".join(whole.text.split(" ")[:6])
        rest = await post_json(
            there,
            CHAT,
            chat_body(
                second.model,
                messages=[*asked, {"role": "assistant", "content": begun}],
                max_tokens=7,
                continue_final_message=True,
                add_generation_prompt=False,
            ),
        )
        here.close()
        there.close()
    assert begun + rest["choices"][0]["message"]["content"] == whole.text


async def test_steps_are_served_on_a_port_of_their_own_too():
    async with running_engines(1, FakeEngineConfig(steps_port=0)) as (engine,):
        assert engine.steps_url != engine.base_url
        client, feed = HttpClient(engine.base_url), StepFeed(engine.steps_url)
        await post_json(client, COMPLETIONS, completion_body(engine.model, max_tokens=4))
        batch = await feed.poll()
        client.close()
        feed.close()
    assert batch.boot == engine.boot
    assert batch.engine.startswith("fake ")
    assert sum(len(step.finished) for step in batch.steps) == 1


async def test_a_reader_of_steps_can_begin_at_a_time():
    async with running_engines(1) as (engine,):
        client, whole = HttpClient(engine.base_url), StepFeed(engine.steps_url)
        await post_json(client, COMPLETIONS, completion_body(engine.model, max_tokens=8))
        steps = (await whole.poll()).steps
        late = StepFeed(engine.steps_url, since_unix_s=steps[5].ended_unix_s - 1e-5)
        batch = await late.poll()
        wrong = [
            (await client.fetch("GET", f"/steps?since_unix_s={text}")).status for text in (".", "x", "-1")
        ]
        for part in (client, whole, late):
            part.close()
    assert len(steps) > 6
    assert batch.steps[: len(steps) - 5] == steps[5:]
    assert wrong == [400, 400, 400]


async def test_a_taken_port_is_named():
    async with running_engines(1) as (engine,):
        with pytest.raises(EngineStartFailed, match=str(engine.port)):
            await FakeEngine(FakeEngineConfig(port=engine.port)).start()


async def test_what_does_not_fit_beside_the_prompt_is_cut_off():
    async with running_engines(1) as (engine,):
        client = HttpClient(engine.base_url)
        body = completion_body(engine.model, list(range(8190)), max_tokens=500)
        reply = await post_json(client, COMPLETIONS, body)
        client.close()
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (2, "length")


async def test_preemptions_reach_the_clients_as_time_only():
    shape = EngineShape(
        max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64, block_size=16, total_blocks=16
    )
    async with running_engines(1, FakeEngineConfig(shape=shape)) as (engine,):
        client = HttpClient(engine.base_url)
        bodies = [completion_body(engine.model, [number] * 60, max_tokens=60) for number in range(6)]
        alone = [await post_json(client, COMPLETIONS, body) for body in bodies]
        together = await asyncio.gather(*(post_json(client, COMPLETIONS, body) for body in bodies))
        metrics = (await client.fetch("GET", "/metrics")).body.decode()
        client.close()
    texts = [[reply["choices"][0]["text"] for reply in replies] for replies in (alone, together)]
    assert texts[0] == texts[1]
    assert 'vllm:num_preemptions_total{engine="0",model_name="fake-model"} 0.0' not in metrics
