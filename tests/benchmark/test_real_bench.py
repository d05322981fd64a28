# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
"""The bench, the metrics and the step feed against a real vLLM."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from phasewise.benchmark.generator import LoadGenerator
from phasewise.benchmark.results import build_report
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.target import find_target, fit_prompts
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import PlanSpec, make_plan
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient
from phasewise.clients.step_feed import StepFeed
from phasewise.core.engine_metrics import delta
from phasewise.core.latency import ttft_breakdown
from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.timeline import Outcome, Part

pytestmark = pytest.mark.real

REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 4, 90, 8


async def measure(client: HttpClient, run_id: str, seed: int) -> BenchRun:
    shape = Shape("test.", Lengths.fixed(PROMPT_TOKENS), Lengths.fixed(OUTPUT_TOKENS))
    rng = Random(seed)
    target = await find_target(client)
    plan = make_plan(PlanSpec(shape, ClosedLoop(2), REQUESTS), rng)
    return await LoadGenerator(client, target, await fit_prompts(client, target, plan, rng), run_id).run()


async def test_a_run_is_measured_end_to_end(real_engine):
    client = HttpClient(real_engine.base_url)
    run = await measure(client, "real-end-to-end", seed=11)
    client.close()
    report = build_report(run, DEFAULT_SLO, np.random.default_rng(0))
    assert run.target.model == real_engine.model
    assert (report.succeeded, report.errors) == (REQUESTS, {})
    for timeline in run.timelines:
        assert (timeline.prompt_tokens, timeline.output_tokens) == (PROMPT_TOKENS, OUTPUT_TOKENS)
        assert timeline.finish_reason == "length"
        parts = ttft_breakdown(timeline)
        assert parts is not None
        assert parts.seconds(Part.PREFILL) > 0
        assert parts.ttft_s > parts.seconds(Part.PREFILL)


async def test_the_engines_counters_grow_by_what_was_sent(real_engine):
    client = HttpClient(real_engine.base_url)
    before = await fetch_metrics(client)
    run = await measure(client, "real-counters", seed=12)
    change = delta(before, await fetch_metrics(client))
    client.close()
    assert change.same_incarnation
    assert change.counter("prompt_tokens_total") == REQUESTS * PROMPT_TOKENS
    assert change.counter("generation_tokens_total") == REQUESTS * OUTPUT_TOKENS
    assert change.counter("request_success_total", finished_reason="length") == REQUESTS
    ttft = change.histogram("time_to_first_token_seconds")
    assert ttft is not None
    assert ttft.count == REQUESTS
    assert 0 < ttft.mean < run.wall_s


async def test_the_recorded_steps_know_the_requests_of_a_run(real_engine):
    feed = StepFeed(real_engine.steps_url)
    client = HttpClient(real_engine.base_url)
    earlier = await feed.poll()
    run = await measure(client, "real-steps", seed=13)
    batch = await feed.poll()
    client.close()
    feed.close()
    ended = {request.request_id: (step, request) for step in batch.steps for request in step.finished}
    assert (batch.boot, batch.dropped, batch.restarted) == (earlier.boot, 0, False)
    assert batch.clock_shift_s == 0.0
    for timeline in run.timelines:
        assert timeline.outcome is Outcome.SUCCEEDED
        step, request = ended[timeline.serving_attempt.engine_request_id]
        assert (request.prompt_tokens, request.output_tokens) == (PROMPT_TOKENS, OUTPUT_TOKENS)
        assert 0 < step.ended_unix_s - timeline.started_unix_s < run.wall_s + 0.1
    # vLLM sometimes logs a step of nothing, which carries no counts.
    assert sum(step.prompt_tokens or 0 for step in batch.steps) == REQUESTS * PROMPT_TOKENS
