"""How much of the KV cache paging wastes, and how much reserving the longest context per request would.

Blocks in use come from the engine's metrics of a run, tokens in use from the requests' timelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from phasewise.core import latency
from phasewise.core.engine_metrics import Series
from phasewise.core.errors import MeasurementError
from phasewise.core.timeline import Timeline
from phasewise.experiments.lever_runs.engine_facts import EngineSizes
from phasewise.experiments.levers.catalogue import Workload
from phasewise.experiments.levers.results import PagingResult
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.plan import PlanSpec
from phasewise.loadgen.workload.presets import Shape

PAGED_TRAFFIC = Workload(
    "mixed chat",
    "prompts of 48 to 1,024 tokens, answers of 16 to 96, eight at once",
    PlanSpec(
        source=Shape(
            about="lengths as they come in chats",
            prompt=Lengths(median_tokens=220, spread=0.8, low_tokens=48, high_tokens=1024),
            output=Lengths(median_tokens=40, spread=0.6, low_tokens=16, high_tokens=96),
        ),
        load=ClosedLoop(8),
        requests=8,
    ),
    least_requests=24,
    requests_step=8,
)


def count_waste(run: BenchRun, facts: EngineSizes, now_unix_s: float) -> PagingResult:
    """How much of the KV cache a run held and used, and how many such requests would fit."""
    if facts.kv_tokens is None or facts.block_tokens is None or facts.context_tokens is None:
        raise MeasurementError(
            "the engine does not report the size of its KV cache", hint="use vLLM's /metrics"
        )
    samples = [
        # Client and engine read different clocks: tokens that seem to exceed the blocks fill them.
        (min(used, held), held, count)
        for at_unix_s, usage in _usage(run)
        if (found := _in_use(run.timelines, at_unix_s)) is not None
        for used, count in (found,)
        if (held := usage * facts.kv_tokens) > 0
    ]
    if not samples:
        raise MeasurementError(
            "no sample of the KV cache fell between a request's first and last token",
            hint="measure again, with longer answers",
        )
    reserve = facts.context_tokens
    paged = [1 - used / held for used, held, _ in samples]
    reserved = [1 - used / (count * reserve) for used, _, count in samples]
    per_request = fmean(held / count for _, held, count in samples)
    return PagingResult(
        block_tokens=facts.block_tokens,
        reserved_tokens=reserve,
        samples=len(samples),
        used_tokens=fmean(used / count for used, _, count in samples),
        paged_tokens=per_request,
        paged_waste=fmean(paged),
        paged_waste_range=(min(paged), max(paged)),
        reserved_waste=fmean(reserved),
        reserved_waste_range=(min(reserved), max(reserved)),
        fits_paged=int(facts.kv_tokens / per_request),
        fits_reserved=facts.kv_tokens // reserve,
        measured_unix_s=now_unix_s,
    )


def _usage(run: BenchRun) -> list[tuple[float, float]]:
    """Times and the share of the KV cache in use: at every step, or once a second without a step record."""
    if run.engine is None:
        return []
    if run.engine.steps:
        return [(step.ended_unix_s, step.kv_usage) for step in run.engine.steps]
    gauges = ((shot.taken_at_unix_s, shot.gauge(Series.KV_USAGE)) for shot in run.engine.snapshots)
    return [(at_unix_s, usage) for at_unix_s, usage in gauges if usage is not None]


def _in_use(timelines: Sequence[Timeline], at_unix_s: float) -> tuple[float, int] | None:
    """Tokens of the requests that decode at a time; None if one is between phases or there is none."""
    used, count = 0.0, 0
    for timeline in timelines:
        since_s = at_unix_s - timeline.started_unix_s
        ttft_s, e2e_s = latency.ttft_s(timeline), latency.e2e_s(timeline)
        if ttft_s is None or e2e_s is None or timeline.prompt_tokens is None or since_s > e2e_s:
            continue
        if 0 <= since_s < ttft_s:
            # Blocks are allocated before the first token: how many of them are filled is unknown.
            return None
        if since_s >= ttft_s:
            share = (since_s - ttft_s) / (e2e_s - ttft_s) if e2e_s > ttft_s else 1.0
            used += timeline.prompt_tokens + share * (timeline.output_tokens or 0)
            count += 1
    return (used, count) if count else None
