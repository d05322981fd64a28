"""The evidence of a window, and its counters summed over engines."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isinf

from phasewise.core.engine_metrics import LoadReading, MetricsDelta, ScrapedHistogram, Series
from phasewise.core.slo import Slo
from phasewise.core.step_log import logs_by_rank
from phasewise.core.steps import EngineStep
from phasewise.core.timeline import Timeline
from phasewise.diagnosis.analysis.attribution import Logs
from phasewise.diagnosis.analysis.counters import EngineCounters, Spread
from phasewise.diagnosis.analysis.engine_load import (
    COUNTERS,
    GATEWAY,
    GENERATOR_AND_GATEWAY,
    PROBE,
    STEP_RECORD,
    EngineSurroundings,
    Window,
)
from phasewise.diagnosis.analysis.engine_view import timelines_from_steps
from phasewise.diagnosis.analysis.streams import NOTICED_STALL_TOKENS
from phasewise.diagnosis.observed.not_observed import Gathered, not_observed
from phasewise.diagnosis.observed.observation import EngineSeen, Observed, TargetKind
from phasewise.diagnosis.observed.surroundings import prefix_cache_on, setup_of, surroundings_of
from phasewise.diagnosis.observed.task_ids import with_reply_ids
from phasewise.engines.known import engine_named


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of a window. `seen_by` is the source of the timelines.

    `surroundings` has every engine, in the order of the target. `setups` names the set-up of each engine:
    equal ones have equal costs. `loads` are the readings of each engine within the window. `synthetic` says
    that the requests are our own probe's, `probe_cut_short` that it was interrupted. `stolen_share` is the
    share of this machine's processor time that its hypervisor gave to others. `numbered` says that the
    requests have numbers instead of their ids, as in an evidence file.
    """

    began_unix_s: float
    window_s: float
    seen_by: str
    timelines: tuple[Timeline, ...]
    logs: Logs
    metrics: tuple[MetricsDelta, ...]
    not_observed: tuple[str, ...]
    surroundings: tuple[EngineSurroundings, ...] = ()
    setups: Mapping[str, Hashable] = field(default_factory=dict)
    synthetic: bool = False
    probe_cut_short: bool = False
    stolen_share: float | None = None
    loads: Mapping[str, tuple[LoadReading, ...]] = field(default_factory=dict)
    numbered: bool = False

    @property
    def explainable(self) -> bool:
        """Whether a gateway keeps the requests by these ids, so that `phasewise explain` finds them."""
        return not self.numbered and self.seen_by in {GATEWAY, GENERATOR_AND_GATEWAY}

    @property
    def window(self) -> Window:
        """Its begin and its end."""
        return self.began_unix_s, self.began_unix_s + self.window_s


def evidence_of(observed: Observed) -> Evidence:
    """What was seen, put together: whose timelines count, each engine's state, and what was not observed."""
    window = (observed.began_unix_s, observed.ended_unix_s)
    logs = {
        each.engine.name: logs_by_rank(_named_steps(each, observed))
        for each in observed.engines
        if each.steps
    }
    timelines, seen_by = _timelines(observed, logs)
    surroundings = tuple(
        surroundings_of(
            each,
            observed.hosts.get(each.engine.name),
            timelines,
            logs.get(each.engine.name, ()),
            window,
        )
        for each in observed.engines
    )
    gathered = Gathered(
        observed.kind,
        observed.engines,
        timelines,
        logs,
        surroundings,
        bool(observed.probed),
        observed.missed,
        observed.kept,
    )
    return Evidence(
        began_unix_s=window[0],
        window_s=window[1] - window[0],
        seen_by=seen_by,
        timelines=tuple(it for it in timelines if it.generates and not it.from_cache),
        logs=logs,
        metrics=tuple(each.metrics for each in observed.engines if each.metrics is not None),
        not_observed=not_observed(gathered),
        surroundings=surroundings,
        setups={each.engine.name: setup_of(each) for each in observed.engines},
        synthetic=observed.synthetic,
        probe_cut_short=observed.cut_short,
        stolen_share=observed.stolen_share,
        loads={each.engine.name: each.loads for each in observed.engines},
    )


def _named_steps(seen: EngineSeen, observed: Observed) -> tuple[EngineStep, ...]:
    """An engine's steps, with the ids of requests that its replies have."""
    if engine_named(seen.engine.kind).LISTING_PATH is None:
        return seen.steps
    return with_reply_ids(seen.engine.name, seen.steps, observed.reported + observed.probed)


def _timelines(observed: Observed, logs: Logs) -> tuple[tuple[Timeline, ...], str]:
    """The requests of the window, from the best source there is, and its name."""
    if observed.kind is TargetKind.GATEWAY:
        ours = {it.request_id for it in observed.probed} if observed.synthetic else frozenset()
        # A probe's verdict is about its own requests, whoever else sends some.
        return tuple(it for it in observed.reported if not ours or it.client_request_id in ours), GATEWAY
    if observed.probed:
        return observed.probed, PROBE
    seen = tuple(
        timeline
        for name, ranks in logs.items()
        for log in ranks
        for timeline in timelines_from_steps(log, name, "", observed.ended_unix_s)
        if timeline.started_unix_s + timeline.ended_s >= observed.began_unix_s
    )
    return seen, STEP_RECORD if seen else COUNTERS


def engine_counters(deltas: Sequence[MetricsDelta], window_s: float, slo: Slo) -> EngineCounters:
    """The engines' counters over the window, summed over engines."""
    caches_on = [said for delta in deltas if (said := prefix_cache_on(delta)) is not None]
    return EngineCounters(
        window_s=window_s,
        ttft=_spread(deltas, Series.TTFT, slo.ttft_s),
        queue=_spread(deltas, Series.QUEUE_TIME),
        prefill=_spread(deltas, Series.PREFILL_TIME),
        itl=_spread(deltas, Series.ITL, NOTICED_STALL_TOKENS * slo.tpot_s),
        tpot=_spread(deltas, Series.TPOT, slo.tpot_s),
        prompt_tokens=_spread(deltas, Series.REQUEST_PROMPT_TOKENS),
        output_tokens=_spread(deltas, Series.REQUEST_OUTPUT_TOKENS),
        prefix_queries=_sum([delta.counter(Series.PREFIX_QUERIES) for delta in deltas]),
        prefix_hits=_sum([delta.counter(Series.PREFIX_HITS) for delta in deltas]),
        running=_sum([delta.after.gauge(Series.RUNNING) for delta in deltas]),
        waiting=_sum([delta.after.gauge(Series.WAITING) for delta in deltas]),
        kv_usage=max(
            (use for delta in deltas if (use := delta.after.gauge(Series.KV_USAGE)) is not None),
            default=None,
        ),
        preemptions=_sum([delta.counter(Series.PREEMPTIONS) for delta in deltas]),
        prefix_cache_on=all(caches_on) if caches_on else None,
        uncached_tokens=_spread(deltas, Series.REQUEST_COMPUTED_TOKENS),
        aborted=_sum([_left(delta) for delta in deltas]),
        rejected=_sum([delta.counter(Series.REPLIES, status="4xx") for delta in deltas]),
    )


def _left(delta: MetricsDelta) -> float | None:
    """Requests whose clients left: vLLM forgets those without counting their end.

    They began, did not end, and are not in the engine any more. Some may have begun before the window.
    """
    counted = delta.counter(Series.FINISHED, finished_reason="abort")
    begun, ended = delta.histogram(Series.TTFT), delta.counter(Series.FINISHED)
    grown = [
        (delta.after.gauge(name) or 0.0) - (delta.before.gauge(name) or 0.0)
        for name in (Series.RUNNING, Series.WAITING)
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
