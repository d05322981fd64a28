"""One picture of a window of traffic: how requests started, how they streamed, what they looked like.

Built from timelines here and from engine counters in counter_picture.py; findings read only the picture.
What a number could not be known from stays None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from phasewise.diagnosis.attribution import ExplainedStall, explain_stalls
from phasewise.diagnosis.shared_prefixes import shared_share
from phasewise.diagnosis.step_log import StepLog
from phasewise.model.latency import (
    PartTime,
    TtftBreakdown,
    chunk_gaps_s,
    tpot_s,
    ttft_breakdown,
)
from phasewise.model.quantiles import quantile
from phasewise.model.slo import Slo
from phasewise.model.timeline import Outcome, Part, Source, Timeline

NOTICED_STALL_TOKENS = 10
"""A stall that swallows the time of this many tokens is one a reader notices."""


Logs = Mapping[str, StepLog]
"""The step record of each worker that has one, by the worker's name."""


def worker_name(timeline: Timeline) -> str:
    """The worker that served the request; empty if none did."""
    serving = timeline.serving_attempt
    return serving.worker.name if serving is not None else ""


def log_of(timeline: Timeline, logs: Logs) -> StepLog | None:
    """The step record of the worker that served the request."""
    return logs.get(worker_name(timeline))


@dataclass(frozen=True, slots=True)
class StartPicture:
    """How requests started. Parts are means per request; with the residual they add up to the mean TTFT."""

    requests: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    parts: tuple[PartTime, ...]
    residual_s: float
    residual_share_p50: float | None
    residual_abs_p50_s: float | None
    late: int
    lost_s: float

    def seconds(self, *parts: Part) -> float:
        """Mean seconds per request spent in these parts; a part nobody saw adds nothing."""
        return sum(entry.seconds for entry in self.parts if entry.part in parts)


@dataclass(frozen=True, slots=True)
class StreamPicture:
    """How requests streamed. Seconds per output token, after the first: ordinary steps, the excess of steps
    that also carried prompt tokens, and what no clock saw; they add up to the mean TPOT."""

    streams: int
    tpot_mean_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    gap_p50_s: float | None
    gap_p99_s: float | None
    gap_max_s: float | None
    step_s: float | None
    chunk_excess_s: float | None
    residual_s: float | None
    slow: int
    lost_s: float
    stall_lost_s: float
    stalls: tuple[ExplainedStall, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """What the traffic looked like."""

    requests: int
    rate_per_s: float | None
    prompt_p50_tokens: float | None
    prompt_p90_tokens: float | None
    output_p50_tokens: float | None
    output_p90_tokens: float | None
    cached_share: float | None
    shared_share: float | None
    running_mean: float | None = None
    waiting_max: int | None = None
    kv_usage_max: float | None = None
    preemptions: int | None = None
    batch_cap: int | None = None
    prefix_cache_on: bool | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything the findings may look at."""

    window_s: float
    seen_by: str
    start: StartPicture | None
    stream: StreamPicture | None
    workload: WorkloadShape
    outcomes: tuple[tuple[str, int], ...]
    not_known: tuple[str, ...] = ()


def start_picture(timelines: Sequence[Timeline], slo: Slo) -> StartPicture | None:
    """How these requests started, or None when none did."""
    breakdowns = [found for found in map(ttft_breakdown, timelines) if found is not None]
    if not breakdowns:
        return None
    values = [found.ttft_s for found in breakdowns]
    shares = [abs(found.residual_s) / found.ttft_s for found in breakdowns if found.ttft_s > 0]
    return StartPicture(
        requests=len(values),
        ttft_mean_s=fmean(values),
        ttft_p50_s=quantile(values, 0.5),
        ttft_p90_s=quantile(values, 0.9),
        parts=_mean_parts(breakdowns),
        residual_s=fmean(found.residual_s for found in breakdowns),
        residual_share_p50=median(shares) if shares else None,
        residual_abs_p50_s=median(abs(found.residual_s) for found in breakdowns),
        late=sum(value > slo.ttft_s for value in values),
        lost_s=sum(max(0.0, value - slo.ttft_s) for value in values),
    )


def _mean_parts(breakdowns: Sequence[TtftBreakdown]) -> tuple[PartTime, ...]:
    totals: dict[tuple[Part, Source], float] = {}
    for found in breakdowns:
        for entry in found.parts:
            key = (entry.part, entry.source)
            totals[key] = totals.get(key, 0.0) + entry.seconds
    order = list(Part)
    ranked = sorted(totals.items(), key=lambda item: order.index(item[0][0]))
    return tuple(PartTime(part, source, total / len(breakdowns)) for (part, source), total in ranked)


def stream_picture(timelines: Sequence[Timeline], slo: Slo, logs: Logs) -> StreamPicture | None:
    """How these requests streamed, or None when no stream had two tokens."""
    streams = [timeline for timeline in timelines if tpot_s(timeline) is not None]
    if not streams:
        return None
    per_token = [value for value in map(tpot_s, streams) if value is not None]
    gaps = [gap for timeline in streams for gap in chunk_gaps_s(timeline)]
    stalls = tuple(
        found for timeline in streams for found in explain_stalls(timeline, log_of(timeline, logs))
    )
    noticed_s = NOTICED_STALL_TOKENS * slo.tpot_s
    noticed = tuple(found for found in stalls if found.stall.duration_s >= noticed_s)
    losses = [_stream_loss_s(timeline, slo, noticed) for timeline in streams]
    step_s, chunk_s = _token_parts(streams, logs)
    mean_s = fmean(per_token)
    return StreamPicture(
        streams=len(streams),
        tpot_mean_s=mean_s,
        tpot_p50_s=quantile(per_token, 0.5),
        tpot_p90_s=quantile(per_token, 0.9),
        gap_p50_s=quantile(gaps, 0.5) if gaps else None,
        gap_p99_s=quantile(gaps, 0.99) if gaps else None,
        gap_max_s=max(gaps, default=None),
        step_s=step_s,
        chunk_excess_s=chunk_s,
        residual_s=None if step_s is None else mean_s - step_s - (chunk_s or 0.0),
        slow=sum(loss > 0 for loss in losses),
        lost_s=sum(losses),
        stall_lost_s=sum(found.stall.excess_s for found in noticed),
        stalls=noticed,
    )


def _stream_loss_s(timeline: Timeline, slo: Slo, noticed: Sequence[ExplainedStall]) -> float:
    """Seconds a reader waited beyond the objective: over the whole stream, or in stalls if that is more."""
    per_token = tpot_s(timeline)
    tokens = timeline.output_tokens or 0
    average_s = 0.0 if per_token is None else max(0.0, (per_token - slo.tpot_s) * (tokens - 1))
    stalled_s = sum(found.stall.excess_s for found in noticed if found.request_id == timeline.request_id)
    return max(average_s, stalled_s)


def _token_parts(streams: Sequence[Timeline], logs: Logs) -> tuple[float | None, float | None]:
    """Mean seconds per token of ordinary steps and of prompt chunks' excess over the streams."""
    usual_s = {name: log.median_decode_step_s() for name, log in logs.items()}
    recorded = [
        _stream_token_parts(timeline, log, usual)
        for timeline in streams
        if (log := log_of(timeline, logs)) is not None
        and (usual := usual_s[worker_name(timeline)]) is not None
    ]
    if not recorded:
        return _reported_token_s(streams), None
    return fmean(item[0] for item in recorded), fmean(item[1] for item in recorded)


def _stream_token_parts(timeline: Timeline, log: StepLog, usual_s: float) -> tuple[float, float]:
    begin_s = timeline.started_unix_s + timeline.content_times_s[0]
    end_s = timeline.started_unix_s + timeline.content_times_s[-1]
    ordinary_s = excess_s = 0.0
    for timed in log.ending_between(begin_s, end_s):
        duration_s = timed.duration_s or usual_s
        over_s = max(0.0, duration_s - usual_s) if timed.step.prompt_tokens else 0.0
        excess_s += over_s
        ordinary_s += duration_s - over_s
    tokens = (timeline.output_tokens or 2) - 1
    return ordinary_s / tokens, excess_s / tokens


def _reported_token_s(streams: Sequence[Timeline]) -> float | None:
    reported = [
        span.duration_s / (timeline.output_tokens - 1)
        for timeline in streams
        if timeline.serving_attempt is not None and timeline.output_tokens is not None
        for span in timeline.serving_attempt.spans
        if span.part is Part.DECODE
    ]
    return fmean(reported) if reported else None


def workload_shape(timelines: Sequence[Timeline], logs: Logs, window_s: float) -> WorkloadShape:
    """What the traffic looked like, from the requests themselves."""
    prompts = [float(it.prompt_tokens) for it in timelines if it.prompt_tokens is not None]
    outputs = [float(it.output_tokens) for it in timelines if it.output_tokens is not None]
    counted = [it for it in timelines if it.prompt_tokens and it.cached_tokens is not None]
    cached = sum(it.cached_tokens or 0 for it in counted)
    steps = [timed.step for log in logs.values() for timed in log.steps]
    return WorkloadShape(
        requests=len(timelines),
        rate_per_s=len(timelines) / window_s if window_s > 0 else None,
        prompt_p50_tokens=quantile(prompts, 0.5) if prompts else None,
        prompt_p90_tokens=quantile(prompts, 0.9) if prompts else None,
        output_p50_tokens=quantile(outputs, 0.5) if outputs else None,
        output_p90_tokens=quantile(outputs, 0.9) if outputs else None,
        cached_share=cached / sum(it.prompt_tokens or 0 for it in counted) if counted else None,
        shared_share=shared_share(timelines),
        running_mean=fmean(step.running for step in steps) if steps else None,
        waiting_max=max((step.waiting for step in steps), default=None),
        kv_usage_max=max((step.kv_usage for step in steps), default=None),
        preemptions=sum(step.preempted for step in steps) if steps else None,
    )


def outcome_counts(timelines: Sequence[Timeline]) -> tuple[tuple[str, int], ...]:
    """How requests ended, all of them."""
    counts = {outcome: sum(it.outcome is outcome for it in timelines) for outcome in Outcome}
    return tuple((outcome.value, count) for outcome, count in counts.items() if count)
