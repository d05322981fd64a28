"""One measurement from start to end: find the model, plan, fit prompts, prime if asked, run and watch.

Everything that measures goes through here: the bench command, its sweeps, and comparisons.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.bench.engine_watch import watching
from phasewise.bench.generator import LoadGenerator, RunLimits
from phasewise.bench.request_body import allows_fixed_lengths
from phasewise.bench.run import BenchRun
from phasewise.bench.target import Target, find_target, fit_prompts
from phasewise.diagnosis.picture import explained
from phasewise.errors import MeasurementError
from phasewise.model.step_log import logs_by_rank
from phasewise.model.timeline import Outcome
from phasewise.workload.arrivals import ClosedLoop
from phasewise.workload.plan import CONTEXT_TOKENS, Plan, PlanSpec, make_plan
from phasewise.workload.prompts import write_opening

PRIMING_CONCURRENCY = 4

OnStart = Callable[[LoadGenerator], None]


class CacheState(StrEnum):
    """What the engine's prefix cache holds of a run's prompts when it begins: nothing, or all of them."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What to measure, and as whom. The same seed gives the same times, lengths and words."""

    plan: PlanSpec
    seed: int
    cache: CacheState = CacheState.COLD
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    steps_url: str | None = None


def _nothing(generator: LoadGenerator) -> None:
    pass


async def measure(url: str, spec: RunSpec, on_start: OnStart = _nothing) -> BenchRun:
    """Put the load on an address and hand over what was seen; `on_start` is given what can be stopped."""
    client = HttpClient(url, Timeouts(head_s=spec.timeout_s, idle_s=spec.timeout_s))
    try:
        target = await find_target(client, spec.model, spec.api_key)
        plan = await _planned(client, target, spec)
        fixed_lengths = await allows_fixed_lengths(client, target)
        limits = RunLimits(request_s=spec.timeout_s)
        primed = spec.cache is CacheState.WARM
        if primed:
            await _prime(client, target, plan, limits)
        run_id = f"bench-{secrets.token_hex(4)}"
        generator = LoadGenerator(client, target, plan, run_id, limits, fixed_lengths)
        on_start(generator)
        async with watching(client.base_url, spec.steps_url) as watch:
            run = await generator.run()
        engine = await watch.record()
        run = replace(run, engine=engine, cpu_samples=tuple(watch.cpu_samples), primed=primed)
        steps = () if engine is None else engine.steps
        return replace(run, timelines=explained(run.timelines, {target.url: logs_by_rank(steps)}))
    finally:
        client.close()


async def _planned(client: HttpClient, target: Target, spec: RunSpec) -> Plan:
    rng = Random(spec.seed)  # noqa: S311 - a workload to be repeated, no secret
    # Words that no run before this one began with: what it left in the prefix cache cannot help.
    opening = write_opening(Random(secrets.randbits(64)))  # noqa: S311 - nothing to be guessed
    plan_spec = replace(spec.plan, context_tokens=target.context_tokens or CONTEXT_TOKENS)
    return await fit_prompts(client, target, make_plan(plan_spec, rng, opening), rng)


async def _prime(client: HttpClient, target: Target, plan: Plan, limits: RunLimits) -> None:
    """Send every prompt that is known beforehand once, for a single token, so that the cache holds it.

    Later turns are not known: what they repeat of the conversation, the run itself puts into the cache.
    """
    openers = [
        replace(first, index=index, at_s=None, max_tokens=1) for index, (first, *_) in enumerate(plan.threads)
    ]
    priming = Plan.of_singles(openers, ClosedLoop(PRIMING_CONCURRENCY))
    run_id = f"prime-{secrets.token_hex(4)}"
    primed = await LoadGenerator(client, target, priming, run_id, limits, fixed_lengths=False).run()
    failed = [timeline for timeline in primed.timelines if timeline.outcome is not Outcome.SUCCEEDED]
    if failed:
        raise MeasurementError(
            f"{len(failed)} of {len(openers)} requests that were to warm the cache failed "
            f"({failed[0].reason or failed[0].outcome.value})",
            hint="look into the server's log, or measure with --cache cold",
        )
