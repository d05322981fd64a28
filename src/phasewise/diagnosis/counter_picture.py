"""The picture that an engine's counters alone can give: means and bucketed quantiles, no single request.

This is what a stock vLLM offers. Reading /metrics is left to adapters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phasewise.diagnosis.picture import (
    Picture,
    StartPicture,
    StreamPicture,
    WorkloadShape,
)
from phasewise.diagnosis.seen_by import COUNTERS
from phasewise.diagnosis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.workload_profile import Distribution, WorkloadProfile, finished_profile
from phasewise.model.latency import PartTime, Stall
from phasewise.model.timeline import Outcome, Part, Source

SAME_TRAFFIC = 0.1
"""Counters and timelines tell of the same traffic when their numbers of requests differ by no more."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram's window: how many, their mean, three quantiles and, if asked, what lies above a bound.

    `over_share` of them do, by `over_sum` all together.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    over_share: float = 0.0
    bound: float | None = None
    over_sum: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """What an engine counted in a window; None where it does not say.

    `aborted` are requests whose clients left before the end, with or without a first token.
    """

    window_s: float
    ttft: Spread | None
    queue: Spread | None
    prefill: Spread | None
    itl: Spread | None
    tpot: Spread | None
    prompt_tokens: Spread | None
    output_tokens: Spread | None
    prefix_queries: float | None
    prefix_hits: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None
    preemptions: float | None
    prefix_cache_on: bool | None
    uncached_tokens: Spread | None = None
    aborted: float | None = None


def counter_picture(counters: EngineCounters, not_known: tuple[str, ...] = ()) -> Picture:
    """The picture of the window as far as counters go."""
    finished = counters.ttft.count if counters.ttft is not None else 0
    return Picture(
        window_s=counters.window_s,
        seen_by=COUNTERS,
        start=_start(counters),
        stream=_stream(counters),
        workload=counter_workload(counters),
        outcomes=_outcomes(finished, counters.aborted),
        not_known=not_known + _silent(counters),
        profile=counter_profile(counters),
    )


def _outcomes(started: int, aborted: float | None) -> tuple[tuple[str, int], ...]:
    counts = (("started", started), (Outcome.CANCELLED.value, round(aborted or 0)))
    return tuple((outcome, count) for outcome, count in counts if count)


def _silent(counters: EngineCounters) -> tuple[str, ...]:
    """An engine counts the time to first token when there is one: whoever waits or left is not in it."""
    waiting = round(counters.waiting or 0)
    aborted = round(counters.aborted or 0)
    if not waiting and not aborted:
        return ()
    who = [f"{waiting} still waiting"] * bool(waiting) + [f"{aborted} whose clients left"] * bool(aborted)
    return (f"how late requests are that got no first token ({', '.join(who)}): counters leave them out",)


def _start(counters: EngineCounters) -> StartPicture | None:
    ttft = counters.ttft
    if ttft is None or ttft.count == 0:
        return None
    parts = mean_parts(counters)
    late = round(ttft.count * ttft.over_share)
    return StartPicture(
        requests=ttft.count,
        unanswered=0,
        timed=ttft.count if parts else 0,
        step_timed=0,
        ttft_p50_s=ttft.p50,
        ttft_p90_s=ttft.p90,
        parts=parts,
        parts_mean_s=ttft.mean,
        residual_s=ttft.mean - sum(entry.seconds for entry in parts),
        residual_share_p50=None,
        residual_abs_p50_s=None,
        late=late,
        lost_s=ttft.over_sum,
    )


def mean_parts(counters: EngineCounters) -> tuple[PartTime, ...]:
    """Mean engine queue and prefill over the window."""
    spreads = ((Part.ENGINE_QUEUE, counters.queue), (Part.PREFILL, counters.prefill))
    return tuple(
        PartTime(part, Source.ENGINE_REPORT, spread.mean) for part, spread in spreads if spread is not None
    )


def _stream(counters: EngineCounters) -> StreamPicture | None:
    tpot, itl = counters.tpot, counters.itl
    if tpot is None or tpot.count == 0:
        return None
    tokens = counters.output_tokens.mean if counters.output_tokens is not None else 1.0
    slow = round(tpot.count * tpot.over_share)
    slow_s = tpot.over_sum * max(0.0, tokens - 1)
    stalls = _stalls(itl)
    stall_s = sum(found.count * found.stall.excess_s for found in stalls)
    return StreamPicture(
        streams=tpot.count,
        step_timed=0,
        tpot_mean_s=tpot.mean,
        tpot_p50_s=tpot.p50,
        tpot_p90_s=tpot.p90,
        gap_p50_s=itl.p50 if itl is not None else None,
        gap_p99_s=itl.p99 if itl is not None else None,
        gap_max_s=None,
        step_s=itl.p50 if itl is not None else None,
        chunk_excess_s=None,
        residual_s=None,
        slow=max(slow, _stalled(sum(found.count for found in stalls), tpot.count)),
        lost_s=max(slow_s, stall_s),
        stall_lost_s=stall_s,
        stalls=stalls,
    )


def _stalls(itl: Spread | None) -> tuple[ExplainedStall, ...]:
    """The gaps that a reader notices, as one of their mean length; what caused them cannot be known."""
    noticed = 0 if itl is None else round(itl.count * itl.over_share)
    if itl is None or itl.bound is None or not noticed:
        return ()
    stall = Stall(start_s=0.0, duration_s=itl.bound + itl.over_sum / noticed, median_gap_s=itl.p50)
    return (ExplainedStall("", stall, StallCause.UNKNOWN, count=noticed),)


def _stalled(stalls: int, streams: int) -> int:
    """How many streams so many stalls hit if they come by chance: some are hit twice, others never."""
    return round(streams * (1.0 - (1.0 - 1.0 / streams) ** stalls))


def counter_workload(counters: EngineCounters) -> WorkloadShape:
    """The workload as counters tell it."""
    prompt, output = counters.prompt_tokens, counters.output_tokens
    requests = counters.ttft.count if counters.ttft is not None else 0
    hits, queries = counters.prefix_hits, counters.prefix_queries
    return WorkloadShape(
        requests=requests,
        rate_per_s=requests / counters.window_s if counters.window_s > 0 else None,
        prompt_p50_tokens=prompt.p50 if prompt is not None else None,
        prompt_p90_tokens=prompt.p90 if prompt is not None else None,
        output_p50_tokens=output.p50 if output is not None else None,
        output_p90_tokens=output.p90 if output is not None else None,
        cached_share=hits / queries if hits is not None and queries else None,
        shared_share=None,
        running_mean=counters.running,
        waiting_max=None if counters.waiting is None else int(counters.waiting),
        kv_usage_max=counters.kv_usage,
        preemptions=None if counters.preemptions is None else int(counters.preemptions),
        prefix_cache_on=counters.prefix_cache_on,
    )


def counter_profile(counters: EngineCounters) -> WorkloadProfile:
    """The profile as counters tell it: quantiles within buckets, and nothing of when requests came."""
    shape = counter_workload(counters)
    under_way = [value for value in (counters.running, counters.waiting) if value is not None]
    return finished_profile(
        WorkloadProfile(
            requests=shape.requests,
            prompt_tokens=_distribution(counters.prompt_tokens),
            uncached_tokens=_distribution(counters.uncached_tokens),
            output_tokens=_distribution(counters.output_tokens),
            rate_per_s=shape.rate_per_s,
            burstiness=None,
            concurrency_mean=sum(under_way) if under_way else None,
            concurrency_max=None,
            shared_share=None,
            cached_share=shape.cached_share,
        )
    )


def _distribution(spread: Spread | None) -> Distribution | None:
    if spread is None or not spread.count:
        return None
    return Distribution(spread.count, spread.mean, None, spread.p50, spread.p90, spread.p99, None)


def with_counters(picture: Picture, counters: EngineCounters, first_tokens: int) -> Picture:
    """A picture of single requests, completed by what only the engine's counters know.

    `first_tokens` are the requests whose first token came within the window: an engine counts them then.
    """
    workload = replace(
        picture.workload,
        prefix_cache_on=counters.prefix_cache_on,
        kv_usage_max=picture.workload.kv_usage_max or counters.kv_usage,
        cached_share=_first_known(picture.workload.cached_share, counter_workload(counters).cached_share),
    )
    return replace(picture, workload=workload, start=_start_with_means(picture.start, counters, first_tokens))


def with_counted_phases(picture: Picture, counters: EngineCounters) -> Picture:
    """A picture of plain replies alone, none of which had a first token to see: the engine counted theirs."""
    counted = replace(picture, seen_by=COUNTERS, start=_start(counters), stream=_stream(counters))
    return replace(counted, not_known=picture.not_known + _silent(counters))


def _first_known(known: float | None, other: float | None) -> float | None:
    return other if known is None else known


def _start_with_means(
    start: StartPicture | None, counters: EngineCounters, first_tokens: int
) -> StartPicture | None:
    """Where replies carried no timings, the window's mean queue and prefill stand in for them.

    Only if the engine counted the same requests: other traffic's means would say nothing about these.
    """
    if start is None or start.timed or counters.ttft is None:
        return start
    if not first_tokens or abs(counters.ttft.count - first_tokens) > SAME_TRAFFIC * first_tokens:
        return start
    parts = start.parts + mean_parts(counters)
    residual_s = start.parts_mean_s - sum(entry.seconds for entry in parts)
    return replace(
        start,
        parts=parts,
        timed=start.requests,
        residual_s=residual_s,
        residual_share_p50=None,
        residual_abs_p50_s=None,
    )
