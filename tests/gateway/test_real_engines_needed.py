"""phasewise_engines_needed with a real vLLM: speeds are learned, and load shows."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.harness import eventually, running_gateway
from tests.gateway.test_engines_needed import needed

pytestmark = pytest.mark.real


async def test_a_real_engine_is_needed_more_under_load(real_engine):
    body = {"model": real_engine.model, "stream": True, "ignore_eos": True}
    async with running_gateway([real_engine]) as gateway:
        for words in (5, 100, 200):
            await gateway.chat("river " * words, max_tokens=8, **body)
        before = await eventually(lambda: needed(gateway.client))
        await asyncio.gather(
            *(gateway.chat(f"{it} " + "lake " * 60, max_tokens=24, **body) for it in range(6))
        )
        after = await needed(gateway.client)
        assert sum(after.values()) > sum(before.values()) > 0
        # Six short answers in a minute are far from a second engine's work.
        assert sum(after.values()) < 6
