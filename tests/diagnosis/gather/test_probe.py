"""A probe finds nothing of its own in the prefix cache, however often it has run before."""

import pytest

from phasewise.benchmark.workload import scenes
from phasewise.diagnosis.gather.probe import LONG_TOKENS, PROBE_REQUESTS, SHORT_TOKENS, STREAMS, probe
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.simulator.engine import EngineShape
from tests.fake_engine_thread import running_fake_engine

BLOCK_TOKENS = 8
"""So small that two prompts with the same first words would share a block."""
LENGTHS = [SHORT_TOKENS] * 3 + [LONG_TOKENS] * 2 + [SHORT_TOKENS] * STREAMS + [LONG_TOKENS]
SENT_TWICE = 4
"""The place of the only prompt that the same run has sent before."""


@pytest.fixture
def engine():
    """An engine of our own: others may have sent prompts to a shared one."""
    shape = EngineShape(block_size=BLOCK_TOKENS, total_blocks=4_096)
    with running_fake_engine(FakeEngineConfig(shape=shape)) as running:
        yield running


async def probed(engine, seed=1):
    timelines = await probe(engine.base_url, None, None, seed, on_scene=lambda title: None)
    return [it.prompt_tokens for it in timelines], [it.cached_tokens for it in timelines]


async def test_a_probe_with_the_same_seed_is_as_long_and_finds_the_cache_as_cold_as_the_first(engine):
    for _ in range(3):
        lengths, cached = await probed(engine)
        assert lengths == LENGTHS
        assert cached[SENT_TWICE] == LONG_TOKENS - BLOCK_TOKENS
        assert cached[:SENT_TWICE] + cached[SENT_TWICE + 1 :] == [0] * (PROBE_REQUESTS - 1)


async def test_without_new_words_the_fake_engine_would_have_cached_the_prompts_of_the_run_before(
    engine, monkeypatch
):
    monkeypatch.setattr(scenes, "write_opening", lambda rng: "")
    await probed(engine)
    _, cached = await probed(engine)
    assert all(cached)
