"""Workloads, cache states, reports and comparisons against a real vLLM."""

from __future__ import annotations

import numpy as np
import pytest

from phasewise.benchmark.results import build_report
from phasewise.benchmark.session import CacheState, RunSpec, measure
from phasewise.benchmark.workload.arrivals import ClosedLoop, Replay
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.traces import Trace, TracedRequest
from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.timeline import Outcome

pytestmark = pytest.mark.real

BLOCK_TOKENS = 128
"""vLLM's block on a CPU: prefixes are shared in whole ones."""
TEMPLATE_BLOCKS = 1
"""The model's template begins with a system prompt of its own, which may fill a block."""


def make_spec(prompt_tokens: int = 300, seed: int = 5, requests: int = 3, **more) -> RunSpec:
    shape = Shape("test.", Lengths.fixed(prompt_tokens), Lengths.fixed(4))
    cache = more.pop("cache", CacheState.COLD)
    return RunSpec(PlanSpec(shape, ClosedLoop(1), requests=requests, **more), seed=seed, cache=cache)


def cached(run) -> list[int]:
    return [timeline.cached_tokens for timeline in run.timelines]


async def test_a_seed_measured_twice_is_cold_both_times_and_warm_when_asked(real_engine):
    first = await measure(real_engine.base_url, make_spec())
    again = await measure(real_engine.base_url, make_spec())
    warm = await measure(real_engine.base_url, make_spec(cache=CacheState.WARM))
    lengths = {timeline.prompt_tokens for run in (first, again, warm) for timeline in run.timelines}
    assert lengths == {300}
    assert max(cached(first) + cached(again)) <= TEMPLATE_BLOCKS * BLOCK_TOKENS
    assert min(cached(warm)) == 2 * BLOCK_TOKENS
    notes = build_report(again, DEFAULT_SLO, np.random.default_rng(0)).notes
    assert not any("not cold" in note for note in notes)


async def test_prompts_behind_a_shared_prefix_and_of_whole_blocks_are_as_long_as_planned(real_engine):
    shape = Shape("test.", Lengths.fixed(700), Lengths.fixed(3), shared_prefix_tokens=500, shared_share=1.0)
    requests = tuple(TracedRequest(0.0, 1100, 3, (7, 100 + at)) for at in range(2))
    for source, tokens in ((shape, 700), (Trace("t", requests), 1100)):
        run = await measure(
            real_engine.base_url, RunSpec(PlanSpec(source, ClosedLoop(1), requests=2), seed=5)
        )
        lengths = [timeline.prompt_tokens for timeline in run.timelines]
        assert lengths == pytest.approx([tokens] * 2, rel=0.02)


async def test_equal_blocks_of_a_trace_are_really_shared_and_its_lengths_are_exact(real_engine):
    requests = tuple(
        TracedRequest(at_s=0.4 * at, prompt_tokens=600 + at, output_tokens=3, block_ids=(7, 100 + at))
        for at in range(4)
    )
    spec = RunSpec(PlanSpec(Trace("four", requests), Replay(1.0)), seed=5)
    run = await measure(real_engine.base_url, spec)
    assert [timeline.prompt_tokens for timeline in run.timelines] == [600, 601, 602, 603]
    # The template's few tokens stand before the shared words, which therefore end within a block.
    assert min(cached(run)[1:]) >= 512 - BLOCK_TOKENS
    assert max(cached(run)) <= 512 + BLOCK_TOKENS


async def test_a_conversation_goes_on_from_the_models_own_words_and_its_cache(real_engine):
    spec = make_spec(requests=3, conversations=Conversations(3, think_s=0.0))
    run = await measure(real_engine.base_url, spec)
    assert {timeline.outcome for timeline in run.timelines} == {Outcome.SUCCEEDED}
    first, second, third = run.timelines
    assert first.prompt_tokens < second.prompt_tokens < third.prompt_tokens
    assert 2 * BLOCK_TOKENS == second.cached_tokens <= third.cached_tokens


async def test_the_engines_own_account_agrees_with_the_clients(real_engine):
    # One after another: however slow the engine is, some end between its first reading and its last.
    shape = Shape("test.", Lengths.fixed(100), Lengths.fixed(16))
    spec = RunSpec(PlanSpec(shape, ClosedLoop(1), requests=24), seed=5, steps_url=real_engine.steps_url)
    run = await measure(real_engine.base_url, spec)
    report = build_report(run, DEFAULT_SLO, np.random.default_rng(0), warm_up_requests=0)
    assert report.engine is not None
    # Its window is that of readings once a second; a request may end outside the one and inside the other.
    assert 1 <= report.engine.requests <= 24
    assert report.engine.preemptions == 0
    assert 0 < report.engine.itl_mean_s < report.e2e_s.max
    assert report.engine.ttft_mean_s < report.ttft_s.max
    assert report.engine.steps is not None
    assert report.engine.steps.decode_tokens > 0
    assert 0 < report.engine.kv_usage_max < 1
