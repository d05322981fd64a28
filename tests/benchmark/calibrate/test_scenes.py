from __future__ import annotations

from itertools import pairwise

import pytest

from phasewise.benchmark.calibrate.scenes import (
    LADDER,
    LARGEST_BATCH,
    ROUNDS_WANTED,
    Scene,
    SceneLimits,
    plan_scenes,
)
from phasewise.costs.fit.step import StepKind

BLOCK_TOKENS = 128
"""The largest block of vLLM's back ends: a sequence takes whole ones."""

ENGINES = {
    "the demo engine on a core": SceneLimits(900.0, 120.0, 8192, 46_592),
    "a slow one": SceneLimits(30.0, 120.0, 8192, 46_592),
    "a short time": SceneLimits(900.0, 15.0, 8192, 46_592),
    "a large accelerator": SceneLimits(40_000.0, 120.0, 131_072, 1_200_000),
    "a fast one with little memory": SceneLimits(40_000.0, 120.0, 8192, 16_384),
    "one that does not report its memory": SceneLimits(5_000.0, 120.0, 32_768, None),
    "a tiny context": SceneLimits(900.0, 120.0, 256, 46_592),
}


@pytest.fixture(params=ENGINES.values(), ids=ENGINES.keys())
def limits(request):
    return request.param


def alone(scenes):
    return [scene for scene in scenes if not scene.streams]


def kinds(scenes):
    found = {StepKind.PREFILL for scene in scenes if not scene.streams and scene.arrivals}
    for scene in scenes:
        if scene.streams:
            found |= {StepKind.DECODE} | ({StepKind.MIXED} if scene.arrivals else set())
    return found


def held_tokens(scene):
    """The KV tokens in use when the longest arrival is computed and all streams are at their end."""
    sequences = [scene.context_tokens + scene.stream_tokens] * scene.streams
    sequences += [max(scene.arrivals, default=0) + 1]
    return sum(-(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS for tokens in sequences)


def test_no_sequence_outgrows_the_context(limits):
    for scene in plan_scenes(limits):
        assert scene.context_tokens + scene.stream_tokens <= limits.context_tokens
        assert all(tokens + 1 <= limits.context_tokens for tokens in scene.arrivals)


def test_no_scene_fills_the_kv_cache(limits):
    capacity = limits.kv_tokens or float("inf")
    assert all(held_tokens(scene) <= capacity for scene in plan_scenes(limits))


def test_a_round_fits_its_share_of_the_time(limits):
    """By prefill, roughly: how long decoding takes is unknown before; a first round may be cut short."""
    prefill_s = sum(scene.prompt_tokens for scene in plan_scenes(limits)) / limits.tokens_per_s
    assert prefill_s <= 1.2 * limits.budget_s / ROUNDS_WANTED


def test_every_phase_is_played_alone_and_together(limits):
    assert kinds(plan_scenes(limits)) == set(StepKind)


def test_the_ladder_climbs_in_even_steps_and_closes_on_the_longest_prompt(limits):
    prompts = [scene.arrivals[0] for scene in alone(plan_scenes(limits))]
    assert prompts == sorted(set(prompts))
    assert prompts[-1] == limits.longest_prompt_tokens
    # The last step may be half a rung longer or shorter, so that no two prompts are nearly alike.
    assert all(1.2 < after / before < LADDER**1.6 for before, after in pairwise(prompts))


def test_batches_double_at_a_short_context_and_at_longer_ones():
    batches = [scene for scene in plan_scenes(ENGINES["a large accelerator"]) if scene.streams]
    assert sorted({scene.streams for scene in batches}) == [1, 2, 4, 8, 16, 32, 64, LARGEST_BATCH]
    for streams in {scene.streams for scene in batches}:
        contexts = [scene.context_tokens for scene in batches if scene.streams == streams]
        assert len(contexts) > 1
        assert contexts == sorted(set(contexts))


def test_no_context_up_to_the_longest_lies_far_from_one_that_is_played(limits):
    """A fit makes no claim about steps whose reach is more than one power of two from any it saw."""
    alone = [scene.context_tokens for scene in plan_scenes(limits) if scene.streams == 1]
    seen = {(tokens + 1).bit_length() for tokens in alone}
    assert all({size - 1, size, size + 1} & seen for size in range(min(seen), max(seen) + 1))


def test_prompts_of_all_sizes_come_among_streams():
    scenes = plan_scenes(ENGINES["the demo engine on a core"])
    among = {tokens for scene in scenes if scene.streams for tokens in scene.arrivals}
    assert min(among) < 64
    assert max(among) > 512


def test_a_faster_engine_is_asked_for_more():
    slow, fast = (plan_scenes(SceneLimits(rate, 120.0, 8192)) for rate in (100.0, 1_000.0))
    assert max(scene.prompt_tokens for scene in fast) > 2 * max(scene.prompt_tokens for scene in slow)


def test_streams_write_longer_the_more_prompts_come_among_them():
    written = [Scene(2, 32, arrivals).stream_tokens for arrivals in ((), (16,), (16, 64))]
    assert written == sorted(set(written))
