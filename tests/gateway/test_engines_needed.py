"""phasewise_engines_needed of a gateway process in front of engines."""

from __future__ import annotations

import asyncio

import orjson
from prometheus_client.parser import text_string_to_metric_families

from phasewise.fake_engine.fleet import running_engines
from tests.gateway.gateway_process import running_process
from tests.gateway.harness import chat_body, eventually


async def needed(client):
    """Engines by pool and phase."""
    text = (await client.fetch("GET", "/metrics")).body.decode()
    (family,) = (it for it in text_string_to_metric_families(text) if it.name == "phasewise_engines_needed")
    return {(it.labels["pool"], it.labels["phase"]): it.value for it in family.samples}


async def serve(client, count, words=200, **fields):
    bodies = (
        orjson.dumps(chat_body(f"{number} " + "word " * words, stream=True, **fields))
        for number in range(count)
    )
    replies = await asyncio.gather(
        *(client.fetch("POST", "/v1/chat/completions", body=body) for body in bodies)
    )
    assert all(it.status == 200 for it in replies)


async def test_a_gateway_publishes_what_its_load_needs(tmp_path):
    async with running_engines(2) as engines, running_process(tmp_path, *engines) as gateway:
        assert await needed(gateway.client) == {}
        for words in (20, 400, 800):
            await serve(gateway.client, 1, words, max_tokens=20)
        before = await eventually(lambda: needed(gateway.client))
        assert {phase for _, phase in before} == {"prefill", "decode"}
        await serve(gateway.client, 40, max_tokens=60)

        async def grown():
            # The text of a scrape is kept for a moment. Decode's part may stay 0: beside a busy test no step
            # need be seen to be longer with more streams.
            found = await needed(gateway.client)
            return all(found[key] > value for key, value in before.items() if key[1] == "prefill")

        assert await eventually(grown)


async def test_the_processes_of_a_gateway_add_up(tmp_path):
    async with (
        running_engines(1) as engines,
        running_process(tmp_path, *engines, processes=2) as gateway,
    ):
        for words in (20, 400, 800):
            await serve(gateway.client, 1, words, max_tokens=20)
        for _ in range(4):
            await serve(gateway.client, 8, max_tokens=30)
        found = await eventually(lambda: needed(gateway.client))
        assert sum(found.values()) > 0
        assert len(found) == 2
