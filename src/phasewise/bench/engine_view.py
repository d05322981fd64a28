"""The engine's own account of a run's window, to stand beside the client's.

Both should tell one story; where they differ, the time was spent between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phasewise.adapters.vllm_metrics import MetricsDelta, MetricsSnapshot, delta
from phasewise.bench.engine_watch import EngineRecord
from phasewise.bench.statistics import Summary, summarise
from phasewise.model.steps import EngineStep, time_steps


@dataclass(frozen=True, slots=True)
class Gauge:
    """How full the engine was at one moment, in seconds since the run began."""

    at_s: float
    kv_usage: float | None
    running: float | None
    waiting: float | None


@dataclass(frozen=True, slots=True)
class StepsView:
    """The recorded steps of the window. `mixed` ones carried prompt tokens and decoded as well."""

    count: int
    mixed: int
    duration_s: Summary
    prompt_tokens: int
    decode_tokens: int


@dataclass(frozen=True, slots=True)
class EngineView:
    """What the engine counted in the window; None where it does not count such a thing.

    Counters are read once a second, so the engine's window is up to two seconds longer than the client's.
    """

    window_s: float | None
    requests: float | None
    ttft_mean_s: float | None
    queue_mean_s: float | None
    prefill_mean_s: float | None
    itl_mean_s: float | None
    e2e_mean_s: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    cached_share: float | None
    preemptions: float | None
    kv_usage_max: float | None
    running_max: float | None
    waiting_max: float | None
    steps: StepsView | None


def view_engine(record: EngineRecord, start_unix_s: float, end_unix_s: float) -> EngineView:
    """What the engine counted between two moments."""
    change = _change(record.snapshots, start_unix_s, end_unix_s)
    inside = [
        gauge for gauge in gauges(record, start_unix_s) if 0.0 <= gauge.at_s <= end_unix_s - start_unix_s
    ]
    queries = None if change is None else change.counter("prefix_cache_queries_total")
    hits = None if change is None else change.counter("prefix_cache_hits_total")
    return EngineView(
        window_s=None if change is None else change.window_s,
        requests=_counted(change, "request_success_total"),
        ttft_mean_s=_mean(change, "time_to_first_token_seconds"),
        queue_mean_s=_mean(change, "request_queue_time_seconds"),
        prefill_mean_s=_mean(change, "request_prefill_time_seconds"),
        itl_mean_s=_mean(change, "inter_token_latency_seconds"),
        e2e_mean_s=_mean(change, "e2e_request_latency_seconds"),
        prompt_tokens=_counted(change, "prompt_tokens_total"),
        generation_tokens=_counted(change, "generation_tokens_total"),
        cached_share=hits / queries if queries and hits is not None else None,
        preemptions=_counted(change, "num_preemptions_total"),
        kv_usage_max=_max(gauge.kv_usage for gauge in inside),
        running_max=_max(gauge.running for gauge in inside),
        waiting_max=_max(gauge.waiting for gauge in inside),
        steps=_view_steps(record.steps, start_unix_s, end_unix_s),
    )


def gauges(record: EngineRecord, started_unix_s: float) -> tuple[Gauge, ...]:
    """How full the engine was over the run: at every step where they were recorded, else once a second."""
    if record.steps:
        return tuple(
            Gauge(step.ended_unix_s - started_unix_s, step.kv_usage, step.running, step.waiting)
            for step in record.steps
        )
    return tuple(
        Gauge(
            snapshot.taken_at_unix_s - started_unix_s,
            snapshot.gauge("kv_cache_usage_perc"),
            snapshot.gauge("num_requests_running"),
            snapshot.gauge("num_requests_waiting"),
        )
        for snapshot in record.snapshots
    )


def _change(snapshots: Sequence[MetricsSnapshot], start_s: float, end_s: float) -> MetricsDelta | None:
    if len(snapshots) < 2:
        return None
    before = [snapshot for snapshot in snapshots if snapshot.taken_at_unix_s <= start_s] or snapshots[:1]
    after = [snapshot for snapshot in snapshots if snapshot.taken_at_unix_s >= end_s] or snapshots[-1:]
    change = delta(before[-1], after[0])
    return change if change.same_incarnation and change.window_s > 0 else None


def _counted(change: MetricsDelta | None, name: str) -> float | None:
    return None if change is None else change.counter(name)


def _mean(change: MetricsDelta | None, name: str) -> float | None:
    histogram = None if change is None else change.histogram(name)
    return None if histogram is None else histogram.mean


def _max(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _view_steps(steps: Sequence[EngineStep], start_s: float, end_s: float) -> StepsView | None:
    inside = [timed for timed in time_steps(steps) if start_s <= timed.step.ended_unix_s <= end_s]
    if not inside:
        return None
    return StepsView(
        count=len(inside),
        mixed=sum(bool(timed.step.prompt_tokens and timed.step.decode_tokens) for timed in inside),
        duration_s=summarise(timed.duration_s for timed in inside),
        prompt_tokens=sum(timed.step.prompt_tokens or 0 for timed in inside),
        decode_tokens=sum(timed.step.decode_tokens or 0 for timed in inside),
    )
