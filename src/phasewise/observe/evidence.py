"""Evidence from a live window, put together into the picture that the verdict reads.

Gathering it is watch.py's and probe.py's; the rules stand in diagnosis.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isinf

import numpy as np

from phasewise.adapters.vllm_metrics import Histogram, MetricsDelta
from phasewise.costs.step_fit import StepFit
from phasewise.diagnosis.attribution import Logs, explained
from phasewise.diagnosis.counter_picture import (
    EngineCounters,
    Spread,
    counter_picture,
    with_counted_phases,
    with_counters,
)
from phasewise.diagnosis.hand_over_use import hand_over_use
from phasewise.diagnosis.picture import Picture, WorkloadShape, outcome_counts, workload_shape
from phasewise.diagnosis.prefix_use import prefix_use
from phasewise.diagnosis.seen_by import is_our_own
from phasewise.diagnosis.start_picture import start_picture
from phasewise.diagnosis.stream_picture import NOTICED_STALL_TOKENS, stream_picture
from phasewise.diagnosis.surroundings import EngineSurroundings
from phasewise.diagnosis.trust import trust_of
from phasewise.diagnosis.workload_profile import workload_profile
from phasewise.model.latency import ttft_breakdown
from phasewise.model.slo import Slo
from phasewise.model.steps import EngineStep
from phasewise.model.timeline import Part, Timeline
from phasewise.observe.surroundings import prefix_cache_on
from phasewise.observe.window_fit import fit_window

FIT_SEED = 0
"""The same evidence gives the same picture, whenever it is looked at."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was gathered in a window. `seen_by` says whose timelines these are.

    `surroundings` are of every engine, in the order of the target. `setups` tell by name which were set up
    alike: what one costs the others do.
    """

    began_unix_s: float
    window_s: float
    seen_by: str
    timelines: tuple[Timeline, ...]
    logs: Logs
    metrics: tuple[MetricsDelta, ...]
    not_known: tuple[str, ...]
    surroundings: tuple[EngineSurroundings, ...] = ()
    setups: Mapping[str, Hashable] = field(default_factory=dict)


def picture_of(evidence: Evidence, slo: Slo, fit: StepFit | None = None) -> Picture:
    """The picture from single requests where there are any, from counters where there are none.

    `fit` are costs that were learned before; without them the window's own steps tell what they can.
    """
    fit = fit or fit_window(evidence.logs, np.random.default_rng(FIT_SEED), evidence.setups)
    picture = _of_requests(evidence, slo, fit) if evidence.timelines else _of_counters(evidence, slo)
    return replace(picture, engines=_with_weights(evidence.surroundings, fit), fit=fit)


def _with_weights(
    engines: tuple[EngineSurroundings, ...], fit: StepFit | None
) -> tuple[EngineSurroundings, ...]:
    """What a calibration knew of the machine, for all engines: saved costs are taken to be theirs."""
    if fit is None or fit.weights_read_s is None:
        return engines
    return tuple(replace(engine, weights_read_s=fit.weights_read_s) for engine in engines)


def _of_counters(evidence: Evidence, slo: Slo) -> Picture:
    counters = engine_counters(evidence.metrics, evidence.window_s, slo)
    picture = counter_picture(counters, evidence.not_known)
    return replace(picture, workload=_with_crowds(picture.workload, evidence.surroundings))


def _with_crowds(workload: WorkloadShape, engines: Sequence[EngineSurroundings]) -> WorkloadShape:
    """Over all of the window, where engines were asked all along and not only at its end."""
    crowds = [engine.crowd for engine in engines if engine.crowd is not None]
    if not crowds:
        return workload
    return replace(
        workload,
        running_mean=sum(crowd.running_mean for crowd in crowds),
        waiting_max=max(crowd.waiting_max for crowd in crowds),
        kv_usage_max=max(crowd.kv_usage_max for crowd in crowds),
    )


def _of_requests(evidence: Evidence, slo: Slo, fit: StepFit | None) -> Picture:
    timelines = explained(evidence.timelines, evidence.logs, fit)
    kv_tokens = {it.name: it.kv_tokens for it in evidence.surroundings if it.kv_tokens is not None}
    prefix = prefix_use(timelines, kv_tokens, evidence.logs)
    picture = Picture(
        window_s=evidence.window_s,
        seen_by=evidence.seen_by,
        start=start_picture(timelines, slo, evidence.logs, fit),
        stream=stream_picture(timelines, slo, evidence.logs, fit),
        workload=workload_shape(
            timelines, _steps_of_window(evidence), evidence.window_s, evidence.began_unix_s
        ),
        outcomes=outcome_counts(timelines),
        not_known=evidence.not_known + _untimed(timelines),
        prefix=prefix,
        trust=trust_of(timelines, are_ours=is_our_own(evidence.seen_by)),
        profile=workload_profile(timelines, evidence.window_s, prefix, evidence.began_unix_s),
        hand_over=hand_over_use(evidence.timelines, evidence.surroundings, evidence.began_unix_s),
    )
    counters = engine_counters(evidence.metrics, evidence.window_s, slo)
    if not any(it.streamed for it in timelines):
        picture = with_counted_phases(picture, counters)
    return with_counters(picture, counters, _first_tokens(evidence))


def _first_tokens(evidence: Evidence) -> int:
    """How many requests got their first token within the window; long streams may have got theirs before."""
    began_s, until_s = evidence.began_unix_s, evidence.began_unix_s + evidence.window_s
    firsts = (it.started_unix_s + it.content_times_s[0] for it in evidence.timelines if it.content_times_s)
    return sum(began_s <= first_s <= until_s for first_s in firsts)


def _steps_of_window(evidence: Evidence) -> list[EngineStep]:
    """Logs reach back before the window, for requests that began there; the workload is the window's."""
    return [
        timed.step
        for ranks in evidence.logs.values()
        for log in ranks
        for timed in log.steps
        if timed.step.ended_unix_s >= evidence.began_unix_s
    ]


def _untimed(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """Requests whose engine did not tell its phases, where others' did."""
    answered = [found for found in map(ttft_breakdown, timelines) if found is not None]
    silent = sum(found.seconds(Part.PREFILL) is None for found in answered)
    if not 0 < silent < len(answered):
        return ()
    return (f"queue and prefill of {silent} of {len(answered)} requests: their engine did not tell",)


def engine_counters(deltas: Sequence[MetricsDelta], window_s: float, slo: Slo) -> EngineCounters:
    """The engines' counters over the window, summed over engines."""
    return EngineCounters(
        window_s=window_s,
        ttft=_spread(deltas, "time_to_first_token_seconds", slo.ttft_s),
        queue=_spread(deltas, "request_queue_time_seconds"),
        prefill=_spread(deltas, "request_prefill_time_seconds"),
        itl=_spread(deltas, "inter_token_latency_seconds", NOTICED_STALL_TOKENS * slo.tpot_s),
        tpot=_spread(deltas, "request_time_per_output_token_seconds", slo.tpot_s),
        prompt_tokens=_spread(deltas, "request_prompt_tokens"),
        output_tokens=_spread(deltas, "request_generation_tokens"),
        prefix_queries=_sum([delta.counter("prefix_cache_queries_total") for delta in deltas]),
        prefix_hits=_sum([delta.counter("prefix_cache_hits_total") for delta in deltas]),
        running=_sum([delta.after.gauge("num_requests_running") for delta in deltas]),
        waiting=_sum([delta.after.gauge("num_requests_waiting") for delta in deltas]),
        kv_usage=max(
            (use for delta in deltas if (use := delta.after.gauge("kv_cache_usage_perc")) is not None),
            default=None,
        ),
        preemptions=_sum([delta.counter("num_preemptions_total") for delta in deltas]),
        prefix_cache_on=_prefix_cache_on(deltas),
        uncached_tokens=_spread(deltas, "request_prefill_kv_computed_tokens"),
        aborted=_sum([delta.counter("request_success_total", finished_reason="abort") for delta in deltas]),
    )


def _spread(deltas: Sequence[MetricsDelta], name: str, bound: float | None = None) -> Spread | None:
    seen: Histogram | None = None
    for delta in deltas:
        found = delta.histogram(name)
        if found is not None:
            seen = found if seen is None else seen.plus(found)
    if seen is None or seen.mean is None:
        return None
    p50, p90, p99 = (
        estimate.value if (estimate := seen.quantile(share)) else seen.mean for share in (0.5, 0.9, 0.99)
    )
    count = round(seen.count)
    if bound is None:
        return Spread(count, seen.mean, p50, p90, p99)
    return Spread(count, seen.mean, p50, p90, p99, share_over(seen, bound), bound, excess_over(seen, bound))


def share_over(seen: Histogram, bound: float) -> float:
    """The share of observations above a bound, assuming an even spread inside the bucket that holds it."""
    low_bound = low_count = 0.0
    for high_bound, high_count in seen.buckets:
        if high_bound >= bound:
            width = high_bound - low_bound
            part = (bound - low_bound) / width if 0 < width < float("inf") else 0.0
            below = low_count + (high_count - low_count) * part
            return max(0.0, 1.0 - below / seen.count) if seen.count else 0.0
        low_bound, low_count = high_bound, high_count
    return 0.0


def excess_over(seen: Histogram, bound: float) -> float:
    """By how much observations exceed a bound, all of them together.

    It is what the sum of all leaves when those below the bound are taken off as buckets tell them, and never
    less or more than the buckets beyond the bound allow.
    """
    over = share_over(seen, bound) * seen.count
    if over <= 0:
        return 0.0
    below_sum = least = most = 0.0
    for (low, upto_low), (high, upto_high) in pairwise(((0.0, 0.0), *seen.buckets)):
        inside = upto_high - upto_low
        if inside <= 0:
            continue
        if low < bound:
            below = inside if high <= bound else 0.0 if isinf(high) else inside * (bound - low) / (high - low)
            below_sum += below * (low + min(high, bound)) / 2
            inside -= below
        least += inside * max(0.0, low - bound)
        most += inside * max(0.0, high - bound) if inside > 0 else 0.0
    return min(max(seen.total - below_sum - over * bound, least), most)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _prefix_cache_on(deltas: Sequence[MetricsDelta]) -> bool | None:
    known = [said for delta in deltas if (said := prefix_cache_on(delta)) is not None]
    return all(known) if known else None
