"""The summary from an engine's counters alone, as a stock vLLM offers: means and bucketed quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from phasewise.core.latency import PartTime, Stall
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Part, Source
from phasewise.diagnosis.analysis.counter_series import ReadingSeries
from phasewise.diagnosis.analysis.engine_counters import EngineCounters, Spread
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.analysis.standstill import Standstill
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.window_summary import WindowSummary, WorkloadShape
from phasewise.diagnosis.analysis.workload_profile import Distribution, WorkloadProfile, finished_profile

NOTICED_LOSS = 0.05
"""A late request that lost less than this share of the objective may be one on time."""
MOSTLY_STEPS = 0.75
"""If steps take this share of a mean token, counters do not show what else slow streams have."""
OWN_MARGIN = 1.5
"""A prompt's own tokens may take this much longer than the engine's usual pace."""
SAME_TRAFFIC = 0.1
"""Counters and timelines cover the same traffic if their request counts differ by no more than this."""


def counter_summary(
    counters: EngineCounters, series: ReadingSeries, slo: Slo, not_observed: tuple[str, ...] = ()
) -> WindowSummary:
    """The summary of the window as far as counters go."""
    finished = counters.ttft.count if counters.ttft is not None else 0
    rejected = round(counters.rejected or 0)
    return WindowSummary(
        window_s=counters.window_s,
        seen_by=SeenBy.COUNTERS,
        start=_start(counters, series, slo),
        stream=_stream(counters, series, slo),
        workload=counter_workload(counters, series),
        outcomes=_outcomes(finished, counters.aborted, rejected, series.open_now),
        rejections=(("HTTP 4xx", rejected),) if rejected else (),
        not_observed=not_observed + _silent(counters),
        profile=counter_profile(counters),
        streamed_tokens=round(series.output_tokens),
        prompts_share=series.prompts_share if series.waited_s is not None else None,
    )


def _outcomes(
    started: int, aborted: float | None, rejected: int, open_now: int
) -> tuple[tuple[str, int], ...]:
    counts = (
        ("started", started),
        (Outcome.UNFINISHED.value, open_now),
        (Outcome.CANCELLED.value, round(aborted or 0)),
        (Outcome.REJECTED.value, rejected),
    )
    return tuple((outcome, count) for outcome, count in counts if count)


def _silent(counters: EngineCounters) -> tuple[str, ...]:
    """An engine counts a TTFT only once there is a first token: requests that wait or were aborted are
    missing.
    """
    waiting = round(counters.waiting or 0)
    aborted = round(counters.aborted or 0)
    if not waiting and not aborted:
        return ()
    who = [f"{waiting} still waiting"] * bool(waiting) + [f"{aborted} whose clients disconnected"] * bool(
        aborted
    )
    return (f"the wait of requests without a first token ({', '.join(who)}): counters leave them out",)


def _start(counters: EngineCounters, series: ReadingSeries, slo: Slo) -> StartSummary | None:
    ttft = counters.ttft
    waits_s = [wait_s for wait_s in series.waits_s if wait_s > slo.ttft_s]
    if ttft is None or ttft.count == 0:
        return _waiting_start(series, slo)
    parts = _parts_by_waiting(ttft, counters.uncached_tokens, series) or mean_parts(counters)
    # A bucket holds an objective only roughly: those that are late must have lost something.
    late = min(round(ttft.count * ttft.over_share), int(ttft.over_sum / (NOTICED_LOSS * slo.ttft_s)))
    waiting_lost_s = sum(waits_s) - slo.ttft_s * len(waits_s)
    lost_s = ttft.over_sum + waiting_lost_s
    return StartSummary(
        requests=ttft.count + len(waits_s),
        unanswered=len(waits_s),
        timed=ttft.count if parts else 0,
        step_timed=0,
        ttft_p50_s=ttft.p50,
        ttft_p90_s=ttft.p90,
        parts=parts,
        parts_mean_s=ttft.mean,
        unexplained_s=ttft.mean - sum(entry.seconds for entry in parts),
        unexplained_share_p50=None,
        unexplained_abs_p50_s=None,
        late=late + len(waits_s),
        lost_s=lost_s,
        late_parts=_with_waiting(parts, waits_s, waiting_lost_s / lost_s) if waits_s and parts else (),
        late_unexplained_s=(ttft.mean - sum(entry.seconds for entry in parts))
        * (1.0 - waiting_lost_s / lost_s if waits_s else 1.0),
        cold_s=_cold_s(series, ttft) if series.cold_gaps else None,
        paused_s=sum(
            _waited_for(standstill, ttft.count / counters.window_s) for standstill in series.standstills
        )
        / ttft.count,
    )


def _with_waiting(
    parts: tuple[PartTime, ...], waits_s: Sequence[float], share: float
) -> tuple[PartTime, ...]:
    """The parts of late requests; those that still wait lost this share of the time, in the queue."""
    queued = PartTime(Part.ENGINE_QUEUE, Source.DERIVED, share * fmean(waits_s))
    return (queued, *(replace(part, seconds=(1.0 - share) * part.seconds) for part in parts))


def _cold_s(series: ReadingSeries, ttft: Spread) -> float:
    """What a request waited for cold steps: by how much those that began in them were later than others."""
    first = sum(gap.first_tokens for gap in series.cold_gaps)
    waited_s = sum(gap.ttft_sum_s for gap in series.cold_gaps)
    others = ttft.count - first
    usual_s = (ttft.mean * ttft.count - waited_s) / others if others > 0 else 0.0
    return max(0.0, waited_s - first * max(0.0, usual_s)) / ttft.count


def _waited_for(standstill: Standstill, rate_per_s: float) -> float:
    """What requests waited for it in all: those whose first token came when it ended, or as many as usually
    arrive in that time, each for half of it.
    """
    seen_s = min(standstill.ttft_sum_s, standstill.first_tokens * standstill.seconds)
    return max(seen_s, rate_per_s * standstill.seconds * standstill.seconds / 2)


def _waiting_start(series: ReadingSeries, slo: Slo) -> StartSummary | None:
    """Requests of which none had a first token in the window, though some waited for it for long."""
    waited_s, waiting = series.waiting_since_s, series.waiting_now
    if not waiting or waited_s <= slo.ttft_s:
        return None
    return StartSummary(
        requests=waiting,
        unanswered=waiting,
        timed=waiting,
        step_timed=0,
        ttft_p50_s=waited_s,
        ttft_p90_s=waited_s,
        parts=(PartTime(Part.ENGINE_QUEUE, Source.DERIVED, waited_s),),
        parts_mean_s=waited_s,
        unexplained_s=0.0,
        unexplained_share_p50=None,
        unexplained_abs_p50_s=None,
        late=waiting,
        lost_s=waiting * (waited_s - slo.ttft_s),
        ttft_p50_at_least=True,
        ttft_p90_at_least=True,
    )


def _parts_by_waiting(ttft: Spread, uncached: Spread | None, series: ReadingSeries) -> tuple[PartTime, ...]:
    """Queue and prefill of the requests that started in the window, from how many waited in it.

    The engine's own histograms of both have the requests that ended in the window, which are others. Of the
    prefill, what the prompt's own tokens take by the engine's pace is its own.
    """
    if series.waited_s is None:
        return ()
    queue_s = min(series.waited_s / ttft.count, ttft.mean)
    prefill_s = ttft.mean - queue_s
    own_s = prefill_s
    if uncached is not None and series.prompt_token_s:
        alone_s = uncached.mean * series.prompt_token_s + (series.decode_step_s or 0.0)
        own_s = min(prefill_s, OWN_MARGIN * alone_s)
    parts = (
        (Part.ENGINE_QUEUE, queue_s),
        (Part.PREFILL, own_s),
        (Part.PREFILL_OTHERS, prefill_s - own_s),
    )
    return tuple(PartTime(part, Source.DERIVED, seconds) for part, seconds in parts if seconds > 0)


def mean_parts(counters: EngineCounters) -> tuple[PartTime, ...]:
    """Mean engine queue and prefill over the window."""
    spreads = ((Part.ENGINE_QUEUE, counters.queue), (Part.PREFILL, counters.prefill))
    return tuple(
        PartTime(part, Source.ENGINE_REPORT, spread.mean) for part, spread in spreads if spread is not None
    )


def _stream(counters: EngineCounters, series: ReadingSeries, slo: Slo) -> StreamSummary | None:
    tpot, itl = counters.tpot, counters.itl
    if tpot is None or tpot.count == 0:
        return _unfinished_stream(itl, series, slo)
    tokens = counters.output_tokens.mean if counters.output_tokens is not None else 1.0
    slow = min(round(tpot.count * tpot.over_share), int(tpot.over_sum / (NOTICED_LOSS * slo.tpot_s)))
    slow_s = tpot.over_sum * max(0.0, tokens - 1)
    stalls = _stalls(itl, series)
    stall_s = sum(found.count * found.stall.excess_s for found in stalls)
    return StreamSummary(
        streams=tpot.count,
        step_timed=0,
        tpot_mean_s=tpot.mean,
        tpot_p50_s=tpot.p50,
        tpot_p90_s=tpot.p90,
        gap_p50_s=itl.p50 if itl is not None else None,
        gap_p99_s=itl.p99 if itl is not None else None,
        gap_max_s=None,
        step_s=_step_s(itl, tpot.mean, series),
        chunk_excess_s=tpot.mean * series.prompts_share or None,
        unexplained_s=None,
        slow=max(slow, _stalled(sum(found.count for found in stalls), tpot.count)),
        lost_s=max(slow_s, stall_s),
        stall_lost_s=stall_s,
        stalls=stalls,
        slow_ledger=_slow_ledger(tpot, slow, _step_s(itl, tpot.mean, series), series) if slow else None,
    )


def _slow_ledger(tpot: Spread, slow: int, step_s: float | None, series: ReadingSeries) -> TokenLedger | None:
    """The mean token of slow streams: a usual step, and beyond it what the engine lost with streams in it,
    in the proportions of all streams.
    """
    if step_s is None or not series.output_tokens or step_s >= MOSTLY_STEPS * tpot.mean:
        return None
    whole_s = max(tpot.mean, (tpot.bound or 0.0) + tpot.over_sum / slow)
    paused_s = sum(
        standstill.seconds * (standstill.requests - standstill.first_tokens)
        for standstill in series.standstills
    )
    cold_s = sum((gap.seconds - gap.needed_s) * gap.streams for gap in series.cold_gaps)
    prompts_s = tpot.mean * series.prompts_share
    rest_s = max(0.0, tpot.mean - step_s)
    known_s = prompts_s + (paused_s + cold_s) / series.output_tokens
    scale = (whole_s - step_s) / max(rest_s, known_s) if max(rest_s, known_s) > 0 else 0.0
    return TokenLedger(
        step_s=step_s,
        prompts_s=scale * prompts_s,
        paused_s=scale * paused_s / series.output_tokens,
        cold_s=scale * cold_s / series.output_tokens,
        unexplained_s=scale * max(0.0, rest_s - known_s),
    )


def _step_s(itl: Spread | None, mean_s: float, series: ReadingSeries) -> float | None:
    """A step's time without prompts: the usual one between readings, else the median gap."""
    if series.prompts_share:
        return min(series.decode_step_s or mean_s, mean_s * (1.0 - series.prompts_share))
    return itl.p50 if itl is not None else None


def _unfinished_stream(itl: Spread | None, series: ReadingSeries, slo: Slo) -> StreamSummary | None:
    """Streams of which none ended in the window: every token's gap is counted when it comes."""
    streams = series.running_max
    if itl is None or itl.count == 0 or not streams:
        return None
    stalls = _stalls(itl, series)
    stall_s = sum(found.count * found.stall.excess_s for found in stalls)
    over_s = max(0.0, itl.mean - slo.tpot_s)
    slow = streams if over_s > 0 else _stalled(sum(found.count for found in stalls), streams)
    return StreamSummary(
        streams=streams,
        step_timed=0,
        tpot_mean_s=itl.mean,
        tpot_p50_s=itl.mean,
        tpot_p90_s=itl.mean,
        gap_p50_s=itl.p50,
        gap_p99_s=itl.p99,
        gap_max_s=None,
        step_s=_step_s(itl, itl.mean, series),
        chunk_excess_s=itl.mean * series.prompts_share or None,
        unexplained_s=None,
        slow=slow,
        lost_s=max(over_s * itl.count, stall_s),
        stall_lost_s=stall_s,
        stalls=stalls,
    )


def _stalls(itl: Spread | None, series: ReadingSeries) -> tuple[ExplainedStall, ...]:
    """The noticeable gaps: those that fall into a pause or a long step of prompts, and one stall for all
    others.
    """
    noticed = 0 if itl is None else round(itl.count * itl.over_share)
    # If most gaps are that long, they are no stalls: every token is slow.
    if itl is None or itl.bound is None or not noticed or itl.p50 >= itl.bound:
        return ()
    known = [
        *(
            (StallCause.PAUSE, standstill.seconds, standstill.requests - round(standstill.first_tokens))
            for standstill in series.standstills
        ),
        *((StallCause.PREFILL_CHUNK, gap.seconds, gap.streams) for gap in series.prompt_gaps),
        *((StallCause.COLD_STEP, gap.seconds, gap.streams) for gap in series.cold_gaps),
    ]
    found = []
    left, left_s = noticed, itl.over_sum
    for cause, seconds, streams in sorted(known, key=lambda each: -each[1]):
        count = min(left, streams)
        if seconds > itl.bound and count > 0 and left_s > 0:
            excess_s = min(seconds - itl.bound, left_s / count)
            stall = Stall(start_s=0.0, duration_s=itl.bound + excess_s, median_gap_s=itl.p50)
            found.append(ExplainedStall("", stall, cause, count=count))
            left, left_s = left - count, left_s - count * excess_s
    if left and left_s > 0:
        stall = Stall(start_s=0.0, duration_s=itl.bound + left_s / left, median_gap_s=itl.p50)
        found.append(ExplainedStall("", stall, StallCause.UNKNOWN, count=left))
    return tuple(found)


def _stalled(stalls: int, streams: int) -> int:
    """The expected number of streams hit by this many random stalls."""
    return round(streams * (1.0 - (1.0 - 1.0 / streams) ** stalls))


def counter_workload(counters: EngineCounters, series: ReadingSeries = ReadingSeries()) -> WorkloadShape:  # noqa: B008 - frozen
    """The workload, from counters. Requests that ran throughout the window neither start nor end in it."""
    prompt, output = counters.prompt_tokens, counters.output_tokens
    started = counters.ttft.count if counters.ttft is not None else 0
    requests = max(started, series.running_max if series.output_tokens > 0 else 0) + round(
        counters.rejected or 0
    )
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
    """The profile, from counters: quantiles within buckets, and no arrival times."""
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


def with_counters(summary: WindowSummary, counters: EngineCounters, first_tokens: int) -> WindowSummary:
    """A summary of single requests, completed from the engine's counters.

    `first_tokens` is the number of requests whose first token came within the window, as engines count them.
    """
    workload = replace(
        summary.workload,
        prefix_cache_on=counters.prefix_cache_on,
        kv_usage_max=summary.workload.kv_usage_max or counters.kv_usage,
        cached_share=_first_known(summary.workload.cached_share, counter_workload(counters).cached_share),
    )
    return replace(summary, workload=workload, start=_start_with_means(summary.start, counters, first_tokens))


def with_counted_phases(summary: WindowSummary, counters: EngineCounters, slo: Slo) -> WindowSummary:
    """A summary of replies that were not streamed: their first tokens come from the engine's counters."""
    none = ReadingSeries()
    counted = replace(
        summary,
        seen_by=SeenBy.COUNTERS,
        start=_start(counters, none, slo),
        stream=_stream(counters, none, slo),
    )
    return replace(counted, not_observed=summary.not_observed + _silent(counters))


def _first_known(known: float | None, other: float | None) -> float | None:
    return other if known is None else known


def _start_with_means(
    start: StartSummary | None, counters: EngineCounters, first_tokens: int
) -> StartSummary | None:
    """If replies carried no timings, use the window's mean queue and prefill times.

    Only if the engine counted the same requests, because means of other traffic do not apply.
    """
    if start is None or start.timed or counters.ttft is None:
        return start
    if not first_tokens or abs(counters.ttft.count - first_tokens) > SAME_TRAFFIC * first_tokens:
        return start
    parts = start.parts + mean_parts(counters)
    unexplained_s = start.parts_mean_s - sum(entry.seconds for entry in parts)
    return replace(
        start,
        parts=parts,
        timed=start.requests,
        unexplained_s=unexplained_s,
        unexplained_share_p50=None,
        unexplained_abs_p50_s=None,
    )
