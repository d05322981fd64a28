"""One measurement from start to end: find the model, plan, fit prompts, prime if requested, run and watch.

The bench command, its sweeps and comparisons all use it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

from phasewise.benchmark.engine_watch import watching
from phasewise.benchmark.generator import LoadGenerator, RunLimits
from phasewise.benchmark.run import BenchRun, allows_fixed_lengths
from phasewise.benchmark.target import Target, find_target, fit_prompts, looked_at_again, ruler_of
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import CONTEXT_TOKENS, Plan, PlanSpec, make_plan
from phasewise.benchmark.workload.prompts import write_opening
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import MeasurementError
from phasewise.core.steps import logs_by_rank
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.analysis.attribution import explained, readings_of

PRIMING_CONCURRENCY = 4

OnStart = Callable[[LoadGenerator], None]


class CacheState(StrEnum):
    """What the engine's prefix cache holds of a run's prompts when it starts: nothing, or all of them."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What to measure, and with which key. The same seed gives the same times, lengths and words."""

    plan: PlanSpec
    seed: int
    cache: CacheState = CacheState.COLD
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    steps_url: str | None = None


def _nothing(generator: LoadGenerator) -> None:
    pass


async def measure(url: str, spec: RunSpec, on_start: OnStart = _nothing) -> BenchRun:
    """Put the load on an address and return what was measured; `on_start` gets the generator, to stop it."""
    client = HttpClient(url, Timeouts(head_s=spec.timeout_s, idle_s=spec.timeout_s))
    try:
        target = await find_target(client, spec.model, spec.api_key, spec.admin_key)
        plan = await _planned(client, target, spec)
        fixed_lengths = await allows_fixed_lengths(client, target)
        limits = RunLimits(request_s=spec.timeout_s)
        primed = spec.cache is CacheState.WARM
        if primed:
            await _prime(client, target, plan, limits)
        run_id = f"bench-{secrets.token_hex(4)}"
        generator = LoadGenerator(client, target, plan, run_id, limits, fixed_lengths)
        async with watching(target, spec.steps_url) as watch:
            # Only now: stopping a generator that does not run yet would end nothing.
            on_start(generator)
            run = await generator.run()
        engine = await watch.record()
        target = await looked_at_again(client, target)
        samples = tuple(watch.cpu_samples)
        run = replace(run, target=target, engine=engine, cpu_samples=samples, primed=primed)
        steps = () if engine is None else engine.steps
        return replace(
            run, timelines=explained(run.timelines, readings_of({target.url: logs_by_rank(steps)}))
        )
    finally:
        client.close()


async def _planned(client: HttpClient, target: Target, spec: RunSpec) -> Plan:
    rng = Random(spec.seed)  # noqa: S311 - a repeatable workload, no secret
    # Words that no earlier run began with, so that its prefixes are not in the cache.
    opening = write_opening(Random(secrets.randbits(64)))  # noqa: S311 - nothing to be guessed
    ruler = await ruler_of(client, target)
    plan_spec = replace(spec.plan, context_tokens=target.context_tokens or CONTEXT_TOKENS, ruler=ruler)
    return await fit_prompts(client, target, make_plan(plan_spec, rng, opening), rng)


async def _prime(client: HttpClient, target: Target, plan: Plan, limits: RunLimits) -> None:
    """Send every prompt that is known in advance once, for a single token, so that the cache holds it.

    Later turns are unknown: the run itself caches what they repeat of the conversation.
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
            f"{len(failed)} of {len(openers)} requests to warm the cache failed "
            f"({failed[0].reason or failed[0].outcome.value})",
            hint="read the server's log, or measure with --cache cold",
        )
