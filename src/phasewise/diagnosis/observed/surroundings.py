"""The state of each engine in a window: its settings, its load and its host."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median

from phasewise.clients.processes import CpuUse
from phasewise.core.engine_metrics import EngineSeries, MetricsDelta
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Timeline
from phasewise.diagnosis.analysis.engine_counters import prefix_cache_on
from phasewise.diagnosis.analysis.engine_load import (
    Drafts,
    EngineLoad,
    EngineSurroundings,
    StepShape,
    Window,
    engine_load_of,
    engine_load_of_gauges,
    step_shape_of,
)
from phasewise.diagnosis.observed.observation import EngineSeen, HostCpu

_CACHE_SIZES = frozenset({"num_gpu_blocks", "num_cpu_blocks", "kv_cache_memory_bytes", "engine"})
"""Values that vLLM measures at startup, which differ between engines with equal settings."""


@dataclass(frozen=True, slots=True)
class _Served:
    """The requests that one engine served in the window, and the uncached tokens of a typical prompt."""

    requests: int
    prompt_tokens: float | None


def surroundings_of(
    seen: EngineSeen,
    host: HostCpu | None,
    timelines: Sequence[Timeline],
    ranks: Sequence[StepLog],
    window: Window,
) -> EngineSurroundings:
    """Everything known about one engine; `timelines` are those of every engine, `ranks` its own steps."""
    metrics = seen.metrics
    after = None if metrics is None else metrics.after
    served = _served(seen, timelines)
    kv_tokens = None if after is None else after.kv_tokens
    fullest, engine_load = _engine_load(seen, ranks, window, served.prompt_tokens, kv_tokens)
    shape = None if fullest is None else step_shape_of(fullest, window)
    started_s = None if after is None else after.process_start_unix_s
    if host is not None and not host.may_be(started_s):
        host = None
    if started_s is None and host is not None:
        started_s = host.started_unix_s
    return EngineSurroundings(
        name=seen.engine.name,
        requests=served.requests,
        kv_tokens=kv_tokens,
        block_tokens=None if after is None else after.block_tokens,
        prefix_cache_on=_prefix_cache_on(metrics, host),
        prefix_queries_tokens=None if metrics is None else metrics.counter(EngineSeries.PREFIX_QUERIES),
        prefix_hits_tokens=None if metrics is None else metrics.counter(EngineSeries.PREFIX_HITS),
        preemptions=None if metrics is None else metrics.counter(EngineSeries.PREEMPTIONS),
        engine_load=engine_load,
        steps=shape,
        drafts=None if metrics is None else drafts_of(metrics),
        age_s=None if started_s is None else max(0.0, window[0] - started_s),
        front_end_cores=_front_end_cores(metrics, host),
        cpu_wait_share=None if host is None else _wait_share(host.use, _busy_share(seen, shape)),
        cpu_source=None if host is None or host.use.source is None else host.use.source.value,
        host_busy_share=None if host is None else host.use.host_busy_share,
        round_trip_s=seen.round_trip_s,
        model=seen.engine.model,
        ranks_busy_share=_ranks_busy_share(ranks, window),
        fetched_tokens=_prompt_tokens(metrics, "external_kv_transfer"),
        own_hit_tokens=_prompt_tokens(metrics, "local_cache_hit"),
        slow_format=None if host is None else host.slow_format,
        out_of_service=seen.out_of_service,
        kind=seen.engine.kind,
        settings={} if host is None else host.settings,
        cores=None if host is None else host.cores,
    )


def setup_of(seen: EngineSeen) -> Hashable:
    """The reported settings that make two engines alike: the model and the cache settings."""
    infos = {} if seen.metrics is None else seen.metrics.after.infos.get(EngineSeries.CACHE_CONFIG, {})
    return seen.engine.model, frozenset(item for item in infos.items() if item[0] not in _CACHE_SIZES)


def _prompt_tokens(metrics: MetricsDelta | None, source: str) -> float | None:
    """The prompt tokens whose KV came from that source; None if the engine does not report it."""
    return None if metrics is None else metrics.counter(EngineSeries.PROMPT_TOKENS_BY_SOURCE, source=source)


def drafts_of(metrics: MetricsDelta) -> Drafts | None:
    """The window's speculative decoding; None without any."""
    drafts, drafted, accepted = (
        metrics.counter(name)
        for name in (EngineSeries.DRAFTS, EngineSeries.DRAFT_TOKENS, EngineSeries.ACCEPTED_TOKENS)
    )
    if not drafts or drafted is None or accepted is None:
        return None
    return Drafts(drafts, drafted, accepted)


def _served(seen: EngineSeen, timelines: Sequence[Timeline]) -> _Served:
    own = [timeline for timeline in timelines if _engine_of(timeline) == seen.engine.name]
    uncached = [
        max(1, timeline.prompt_tokens - (timeline.cached_tokens or 0))
        for timeline in own
        if timeline.prompt_tokens
    ]
    if own or seen.metrics is None:
        return _Served(len(own), median(uncached) if uncached else None)
    lengths = [
        seen.metrics.histogram(series)
        for series in (EngineSeries.REQUEST_COMPUTED_TOKENS, EngineSeries.REQUEST_PROMPT_TOKENS)
    ]
    means = [found.mean for found in lengths if found is not None and found.mean is not None]
    started = seen.metrics.histogram(EngineSeries.TTFT)
    return _Served(round(started.count) if started else 0, means[0] if means else None)


def _engine_of(timeline: Timeline) -> str | None:
    serving = timeline.serving_attempt
    return None if serving is None else serving.worker.name


def _engine_load(
    seen: EngineSeen,
    ranks: Sequence[StepLog],
    window: Window,
    prompt_tokens: float | None,
    kv_tokens: int | None,
) -> tuple[StepLog | None, EngineLoad | None]:
    """Its load: from its steps (of several ranks the one with the longest queue), else from its gauges."""
    block_tokens = 1 if seen.metrics is None else seen.metrics.after.block_tokens or 1
    engine_loads = [
        (log, engine_load)
        for log in ranks
        if (
            engine_load := engine_load_of(
                [timed.step for timed in log.steps], window, prompt_tokens, kv_tokens, block_tokens
            )
        )
    ]
    if engine_loads:
        return max(engine_loads, key=lambda each: (each[1].waiting_mean, each[1].running_mean))
    return None, engine_load_of_gauges(seen.loads, prompt_tokens, kv_tokens, block_tokens)


def _busy_share(seen: EngineSeen, shape: StepShape | None) -> float | None:
    """The part of the window in which the engine had work."""
    if shape is not None:
        return shape.busy_share
    working = [load.running + load.waiting > 0 for load in seen.loads]
    return sum(working) / len(working) if working else None


def _ranks_busy_share(ranks: Sequence[StepLog], window: Window) -> float | None:
    shapes = [shape for log in ranks if (shape := step_shape_of(log, window)) is not None]
    return sum(shape.busy_share for shape in shapes) if shapes else None


def _wait_share(use: CpuUse, busy_share: float | None) -> float | None:
    """The share of the engine's working time in which it waited for cores."""
    if use.wait_share is None or use.stalled_share is None or not busy_share:
        return use.wait_share
    return min(use.wait_share, use.stalled_share / busy_share)


def _front_end_cores(metrics: MetricsDelta | None, host: HostCpu | None) -> float | None:
    """The API process's own CPU figures, also for remote engines; None if it also computes."""
    if host is not None and host.use.front_end_cores is None:
        return None
    if metrics is not None and metrics.same_incarnation and metrics.window_s > 0:
        before_s, after_s = metrics.before.process_cpu_s, metrics.after.process_cpu_s
        if before_s is not None and after_s is not None:
            return (after_s - before_s) / metrics.window_s
    return None if host is None else host.use.front_end_cores


def _prefix_cache_on(metrics: MetricsDelta | None, host: HostCpu | None) -> bool | None:
    """As it reports, or as its command line says."""
    said = None if metrics is None else prefix_cache_on(metrics)
    named = None if host is None else host.settings.get("prefix_cache")
    return bool(named) if said is None and named is not None else said
