"""What engines counted over a window, summed over them: their page of metrics at its begin and at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isinf

from phasewise.core.engine_metrics import EngineSeries, MetricsDelta, ScrapedHistogram
from phasewise.core.slo import Slo
from phasewise.diagnosis.analysis.streams import NOTICED_STALL_TOKENS


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram over the window: count, mean, three quantiles and, if asked, what exceeds a bound.

    `over_share` is the share that exceeds it, `over_sum` the total excess.
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
    """What an engine counted in a window; None if it does not report it.

    `aborted` are requests whose clients disconnected before the end, with or without a first token.
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
    rejected: float | None = None


def engine_counters(deltas: Sequence[MetricsDelta], window_s: float, slo: Slo) -> EngineCounters:
    """The engines' counters over the window, summed over engines."""
    caches_on = [said for delta in deltas if (said := prefix_cache_on(delta)) is not None]
    return EngineCounters(
        window_s=window_s,
        ttft=_spread(deltas, EngineSeries.TTFT, slo.ttft_s),
        queue=_spread(deltas, EngineSeries.QUEUE_TIME),
        prefill=_spread(deltas, EngineSeries.PREFILL_TIME),
        itl=_spread(deltas, EngineSeries.ITL, NOTICED_STALL_TOKENS * slo.tpot_s),
        tpot=_spread(deltas, EngineSeries.TPOT, slo.tpot_s),
        prompt_tokens=_spread(deltas, EngineSeries.REQUEST_PROMPT_TOKENS),
        output_tokens=_spread(deltas, EngineSeries.REQUEST_OUTPUT_TOKENS),
        prefix_queries=_sum([delta.counter(EngineSeries.PREFIX_QUERIES) for delta in deltas]),
        prefix_hits=_sum([delta.counter(EngineSeries.PREFIX_HITS) for delta in deltas]),
        running=_sum([delta.after.gauge(EngineSeries.RUNNING) for delta in deltas]),
        waiting=_sum([delta.after.gauge(EngineSeries.WAITING) for delta in deltas]),
        kv_usage=max(
            (use for delta in deltas if (use := delta.after.gauge(EngineSeries.KV_USAGE)) is not None),
            default=None,
        ),
        preemptions=_sum([delta.counter(EngineSeries.PREEMPTIONS) for delta in deltas]),
        prefix_cache_on=all(caches_on) if caches_on else None,
        uncached_tokens=_spread(deltas, EngineSeries.REQUEST_COMPUTED_TOKENS),
        aborted=_sum([_left(delta) for delta in deltas]),
        rejected=_sum([delta.counter(EngineSeries.REPLIES, status="4xx") for delta in deltas]),
    )


def _left(delta: MetricsDelta) -> float | None:
    """Requests whose clients left: vLLM forgets those without counting their end.

    They began, did not end, and are not in the engine any more. Some may have begun before the window.
    """
    counted = delta.counter(EngineSeries.FINISHED, finished_reason="abort")
    begun, ended = delta.histogram(EngineSeries.TTFT), delta.counter(EngineSeries.FINISHED)
    grown = [
        (delta.after.gauge(name) or 0.0) - (delta.before.gauge(name) or 0.0)
        for name in (EngineSeries.RUNNING, EngineSeries.WAITING)
    ]
    if begun is None or ended is None:
        return counted
    # A preempted request waits again.
    return max(counted or 0.0, begun.count - ended - max(grown[0], sum(grown)))


def _spread(deltas: Sequence[MetricsDelta], name: str, bound: float | None = None) -> Spread | None:
    seen: ScrapedHistogram | None = None
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


def share_over(seen: ScrapedHistogram, bound: float) -> float:
    """The share of observations above a bound.

    Inside the bucket that holds the bound, they are taken to lie evenly around their mean, as far as the
    bucket reaches: an even spread over all of it would call a server slow whose objective is in its bucket.
    """
    low_bound = low_count = 0.0
    for high_bound, high_count in seen.buckets:
        if high_bound >= bound:
            inside = high_count - low_count
            part = _part_below(seen, (low_bound, high_bound), inside, bound)
            return max(0.0, 1.0 - (low_count + inside * part) / seen.count) if seen.count else 0.0
        low_bound, low_count = high_bound, high_count
    return 0.0


def _part_below(seen: ScrapedHistogram, bucket: tuple[float, float], inside: float, bound: float) -> float:
    """The part of a bucket's observations that lie below a bound within it."""
    low, high = bucket
    if isinf(high) or inside <= 0 or high <= low:
        return 0.0
    finite = [each for each in seen.buckets if not isinf(each[0])]
    mean = (low + high) / 2
    if finite[-1][1] >= seen.count:
        # No observation lies beyond all buckets, so the sum shows where those of this bucket are.
        others_sum = sum(
            (upto_here - upto_before) * (before + here) / 2
            for (before, upto_before), (here, upto_here) in pairwise(((0.0, 0.0), *finite))
            if here != high
        )
        mean = min(max((seen.total - others_sum) / inside, low), high)
    reach = min(mean - low, high - mean)
    if reach <= 0:
        return 1.0 if bound >= mean else 0.0
    return min(1.0, max(0.0, (bound - (mean - reach)) / (2 * reach)))


def excess_over(seen: ScrapedHistogram, bound: float) -> float:
    """The total by which observations exceed a bound.

    It is the sum of all less the estimate for those below the bound, limited to what the buckets above the
    bound allow.
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


def prefix_cache_on(metrics: MetricsDelta) -> bool | None:
    """Whether prefix caching is on; None if the engine does not report it."""
    said = metrics.after.infos.get(EngineSeries.CACHE_CONFIG, {}).get("enable_prefix_caching")
    return None if said is None else said == "True"
