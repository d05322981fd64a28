"""One picture of a window of traffic: how requests started, how they streamed, what they looked like.

Built from timelines here and from engine counters in counter_picture.py; findings read only the picture.
What a number could not be known from stays None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from phasewise.costs.step_fit import StepFit
from phasewise.diagnosis.attribution import ExplainedStall, attribute, explain_stalls
from phasewise.diagnosis.shared_prefixes import shared_share
from phasewise.diagnosis.surroundings import EngineSurroundings
from phasewise.model.latency import (
    PartTime,
    TtftBreakdown,
    chunk_gaps_s,
    tpot_s,
    ttft_breakdown,
)
from phasewise.model.quantiles import quantile
from phasewise.model.slo import Slo
from phasewise.model.step_log import StepLog
from phasewise.model.steps import EngineStep
from phasewise.model.timeline import Outcome, Part, Source, Timeline

NOTICED_STALL_TOKENS = 10
"""A stall that swallows the time of this many tokens is one a reader notices."""


Logs = Mapping[str, tuple[StepLog, ...]]
"""The step record of each worker that has one, by the worker's name; one log per data-parallel rank."""


def log_of(timeline: Timeline, logs: Logs) -> StepLog | None:
    """The step record of the rank that served the request; None where it cannot be told."""
    serving = timeline.serving_attempt
    ranks = logs.get(serving.worker.name, ()) if serving is not None else ()
    if len(ranks) == 1:
        return ranks[0]
    request_id = serving.engine_request_id if serving is not None else None
    return next((log for log in ranks if request_id and log.finished(request_id) is not None), None)


def explained(timelines: Iterable[Timeline], logs: Logs) -> tuple[Timeline, ...]:
    """The timelines with what the step records add: the wait for a running step, others' prompt tokens."""
    return tuple(
        timeline if (log := log_of(timeline, logs)) is None else attribute(timeline, log)
        for timeline in timelines
    )


@dataclass(frozen=True, slots=True)
class EngineStart:
    """How the requests of one engine started: how many, and their mean TTFT and wait in its queue."""

    engine: str
    requests: int
    ttft_mean_s: float
    queue_mean_s: float


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """The mean time of an output token after the first, by where it went; with the residual it adds up.

    `floor_s`, `batch_s` and `kv_read_s` are what decode steps need, told apart by the fitted costs, and make
    up `step_s`; None without a fit. `prompts_s` is what prompts computed in the same steps added,
    `preempted_s` what was lost by streams that had to give up their place, `paused_s` time in which the
    engine stood still, `client_s` what the gateway waited for its client to read, `cold_s` what first steps
    of their kind took more than later ones.
    """

    step_s: float
    floor_s: float | None = None
    batch_s: float | None = None
    kv_read_s: float | None = None
    prompts_s: float = 0.0
    preempted_s: float = 0.0
    paused_s: float = 0.0
    client_s: float = 0.0
    cold_s: float = 0.0
    residual_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefixUse:
    """How prompts repeat what came before, as shares of all prompt tokens.

    `shared` stood at the beginning of an earlier prompt, `shared_here` of one that the same engine served,
    `kept` of one so recent that the engine's KV cache should still hold it; `cached` is what came from the
    cache. `repeated` is text that an earlier prompt held anywhere, not only at its beginning.
    """

    shared: float
    shared_here: float
    kept: float
    cached: float | None
    repeated: float | None = None


@dataclass(frozen=True, slots=True)
class Trust:
    """Whether the measurement itself can be trusted.

    `lag_mean_s` and `lag_p90_s` are how late the load generator sent. `warm_share` is the share of prompt
    tokens that came from the cache though nobody had sent them in this window. `ttft_drift` and `tpot_drift`
    are the median of the last third over that of the first, None where that is chance.
    """

    lag_mean_s: float | None = None
    lag_p90_s: float | None = None
    warm_share: float | None = None
    ttft_drift: float | None = None
    tpot_drift: float | None = None


@dataclass(frozen=True, slots=True)
class StartPicture:
    """How requests started.

    Parts are means over the `timed` requests, those whose engine told its phases; with the residual they add
    up to `parts_mean_s`. `late` and `lost_s` count every request, those that never answered among them.
    """

    requests: int
    unanswered: int
    timed: int
    step_timed: int
    ttft_p50_s: float
    ttft_p90_s: float
    parts: tuple[PartTime, ...]
    parts_mean_s: float
    residual_s: float
    residual_share_p50: float | None
    residual_abs_p50_s: float | None
    late: int
    lost_s: float
    unfinished: int = 0
    cold_s: float | None = None
    by_engine: tuple[EngineStart, ...] = ()

    def seconds(self, *parts: Part) -> float:
        """Mean seconds per request spent in these parts; a part nobody saw adds nothing."""
        return sum(entry.seconds for entry in self.parts if entry.part in parts)


@dataclass(frozen=True, slots=True)
class StreamPicture:
    """How requests streamed. Seconds per output token, after the first: ordinary steps, the excess of steps
    that also carried prompt tokens, and what no clock saw; they add up to the mean TPOT."""

    streams: int
    step_timed: int
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
    ledger: TokenLedger | None = None


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
    engines: tuple[EngineSurroundings, ...] = ()
    prefix: PrefixUse | None = None
    trust: Trust = Trust()
    fit: StepFit | None = None


def start_picture(timelines: Sequence[Timeline], slo: Slo) -> StartPicture | None:
    """How these requests started, or None when none did."""
    breakdowns = [found for found in map(ttft_breakdown, timelines) if found is not None]
    if not breakdowns:
        return None
    values = [found.ttft_s for found in breakdowns]
    waits = [it.ended_s for it in timelines if _left_waiting(it)]
    timed = [found for found in breakdowns if _engine_told(found)] or breakdowns
    residuals = [abs(found.residual_s) for found in timed]
    return StartPicture(
        requests=len(values) + len(waits),
        unanswered=len(waits),
        timed=sum(_engine_told(found) for found in breakdowns),
        step_timed=sum(_told_by_steps(found) for found in breakdowns),
        ttft_p50_s=quantile(values, 0.5),
        ttft_p90_s=quantile(values, 0.9),
        parts=_mean_parts(timed),
        parts_mean_s=fmean(found.ttft_s for found in timed),
        residual_s=fmean(found.residual_s for found in timed),
        residual_share_p50=median(
            residual / found.ttft_s for residual, found in zip(residuals, timed, strict=True)
        ),
        residual_abs_p50_s=median(residuals),
        late=sum(value > slo.ttft_s for value in values + waits),
        lost_s=sum(max(0.0, value - slo.ttft_s) for value in values + waits),
    )


def _left_waiting(timeline: Timeline) -> bool:
    """Whether the request ended without an answer: it waited at least that long."""
    gave_up = {Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.FAILED}
    return not timeline.content_times_s and timeline.outcome in gave_up


def _engine_told(found: TtftBreakdown) -> bool:
    return any(entry.part in {Part.ENGINE_QUEUE, Part.PREFILL} for entry in found.parts)


def _told_by_steps(found: TtftBreakdown) -> bool:
    return any(entry.part is Part.PREFILL and entry.source is Source.STEP_RECORD for entry in found.parts)


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
    """How these requests streamed, or None when no stream has a time per token."""
    streams = [timeline for timeline in timelines if len(timeline.content_times_s) > 1]
    whole = [timeline for timeline in streams if tpot_s(timeline) is not None]
    if not whole:
        return None
    per_token = [value for value in map(tpot_s, whole) if value is not None]
    gaps = [gap for timeline in streams for gap in chunk_gaps_s(timeline)]
    stalls = tuple(
        found for timeline in streams for found in explain_stalls(timeline, log_of(timeline, logs))
    )
    noticed_s = NOTICED_STALL_TOKENS * slo.tpot_s
    noticed = tuple(found for found in stalls if found.stall.duration_s >= noticed_s)
    losses = [_stream_loss_s(timeline, slo, noticed) for timeline in streams]
    token_parts = _TokenParts.of(whole, logs)
    return StreamPicture(
        streams=len(streams),
        step_timed=token_parts.recorded,
        tpot_mean_s=fmean(per_token),
        tpot_p50_s=quantile(per_token, 0.5),
        tpot_p90_s=quantile(per_token, 0.9),
        gap_p50_s=quantile(gaps, 0.5),
        gap_p99_s=quantile(gaps, 0.99),
        gap_max_s=max(gaps),
        step_s=token_parts.step_s,
        chunk_excess_s=token_parts.chunk_excess_s,
        residual_s=token_parts.residual_s(fmean(per_token)),
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


@dataclass(frozen=True, slots=True)
class _TokenParts:
    """Mean seconds per token: ordinary steps and, with a step record, the excess of prompt chunks."""

    recorded: int
    step_s: float | None
    chunk_excess_s: float | None

    @classmethod
    def of(cls, streams: Sequence[Timeline], logs: Logs) -> _TokenParts:
        recorded = [
            _stream_token_parts(timeline, log, log.usual_decode_step_s)
            for timeline in streams
            if (log := log_of(timeline, logs)) is not None and log.usual_decode_step_s is not None
        ]
        if not recorded:
            return cls(0, _reported_token_s(streams), None)
        return cls(len(recorded), fmean(item[0] for item in recorded), fmean(item[1] for item in recorded))

    def residual_s(self, mean_s: float) -> float | None:
        return None if self.step_s is None else mean_s - self.step_s - (self.chunk_excess_s or 0.0)


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


def workload_shape(
    timelines: Sequence[Timeline], steps: Sequence[EngineStep], window_s: float
) -> WorkloadShape:
    """What the traffic looked like, from the requests themselves and the steps of the window."""
    prompts = [float(it.prompt_tokens) for it in timelines if it.prompt_tokens is not None]
    outputs = [float(it.output_tokens) for it in timelines if it.output_tokens is not None]
    counted = [it for it in timelines if it.prompt_tokens and it.cached_tokens is not None]
    cached = sum(it.cached_tokens or 0 for it in counted)
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
