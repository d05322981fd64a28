"""Puts together what was around each engine: its set-up, how full it was, what its host gave it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median

from phasewise.adapters.process_cpu import CpuUse
from phasewise.adapters.vllm_metrics import MetricsDelta
from phasewise.diagnosis.crowd import Window, crowd_of, crowd_of_gauges, step_shape_of
from phasewise.diagnosis.surroundings import Crowd, Drafts, EngineSurroundings, StepShape
from phasewise.model.step_log import StepLog
from phasewise.model.timeline import Timeline
from phasewise.observe.engine_watch import EngineSeen
from phasewise.observe.host_watch import HostCpu

_CACHE_SIZES = frozenset({"num_gpu_blocks", "num_cpu_blocks", "kv_cache_memory_bytes", "engine"})
"""What vLLM measures of its cache at start, and so differs between engines that were set up alike."""


@dataclass(frozen=True, slots=True)
class _Served:
    """What one engine served in the window: how many requests, and what it computes of an ordinary prompt."""

    requests: int
    prompt_tokens: float | None


def surroundings_of(
    seen: EngineSeen,
    host: HostCpu | None,
    timelines: Sequence[Timeline],
    ranks: Sequence[StepLog],
    window: Window,
) -> EngineSurroundings:
    """All that is known around one engine; `timelines` are those of every engine, `ranks` its own steps."""
    metrics = seen.metrics
    after = None if metrics is None else metrics.after
    served = _served(seen, timelines)
    kv_tokens = None if after is None else after.kv_tokens
    fullest, crowd = _crowd(seen, ranks, window, served.prompt_tokens, kv_tokens)
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
        prefix_cache_on=None if metrics is None else prefix_cache_on(metrics),
        prefix_queries_tokens=None if metrics is None else metrics.counter("prefix_cache_queries_total"),
        prefix_hits_tokens=None if metrics is None else metrics.counter("prefix_cache_hits_total"),
        preemptions=None if metrics is None else metrics.counter("num_preemptions_total"),
        crowd=crowd,
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
    )


def setup_of(seen: EngineSeen) -> Hashable:
    """What makes two engines alike, as far as they tell: the model and how the cache was set up."""
    infos = {} if seen.metrics is None else seen.metrics.after.infos.get("cache_config_info", {})
    return seen.engine.model, frozenset(item for item in infos.items() if item[0] not in _CACHE_SIZES)


def _prompt_tokens(metrics: MetricsDelta | None, source: str) -> float | None:
    """So many tokens of prompts had their KV from there; None where the engine does not say."""
    return None if metrics is None else metrics.counter("prompt_tokens_by_source_total", source=source)


def prefix_cache_on(metrics: MetricsDelta) -> bool | None:
    """Whether the engine keeps prefixes; None where it does not say."""
    said = metrics.after.infos.get("cache_config_info", {}).get("enable_prefix_caching")
    return None if said is None else said == "True"


def drafts_of(metrics: MetricsDelta) -> Drafts | None:
    """How speculation went; None where the engine does not speculate or did not in this window."""
    drafts, drafted, accepted = (
        metrics.counter(f"spec_decode_num_{name}_total")
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if not drafts or drafted is None or accepted is None:
        return None
    return Drafts(drafts, drafted, accepted)


def _served(seen: EngineSeen, timelines: Sequence[Timeline]) -> _Served:
    own = [it for it in timelines if _engine_of(it) == seen.engine.name]
    uncached = [max(1, it.prompt_tokens - (it.cached_tokens or 0)) for it in own if it.prompt_tokens]
    if own or seen.metrics is None:
        return _Served(len(own), median(uncached) if uncached else None)
    lengths = [seen.metrics.histogram(f"request_{kind}_tokens") for kind in ("prefill_kv_computed", "prompt")]
    means = [found.mean for found in lengths if found is not None and found.mean is not None]
    started = seen.metrics.histogram("time_to_first_token_seconds")
    return _Served(round(started.count) if started else 0, means[0] if means else None)


def _engine_of(timeline: Timeline) -> str | None:
    serving = timeline.serving_attempt
    return None if serving is None else serving.worker.name


def _crowd(
    seen: EngineSeen,
    ranks: Sequence[StepLog],
    window: Window,
    prompt_tokens: float | None,
    kv_tokens: int | None,
) -> tuple[StepLog | None, Crowd | None]:
    """How full it was: by its steps, of several ranks the one with the longest queue, else by its gauges."""
    crowds = [
        (log, crowd)
        for log in ranks
        if (crowd := crowd_of([timed.step for timed in log.steps], window, prompt_tokens, kv_tokens))
    ]
    if crowds:
        return max(crowds, key=lambda each: (each[1].waiting_mean, each[1].running_mean))
    return None, crowd_of_gauges(seen.loads, prompt_tokens, kv_tokens)


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
    """What waiting for cores took of the time that the engine was at work, not of what its threads wanted."""
    if use.wait_share is None or use.stalled_share is None or not busy_share:
        return use.wait_share
    return min(use.wait_share, use.stalled_share / busy_share)


def _front_end_cores(metrics: MetricsDelta | None, host: HostCpu | None) -> float | None:
    """What the API process says of itself, which remote ones do too; nothing if it computes as well."""
    if host is not None and host.use.front_end_cores is None:
        return None
    if metrics is not None and metrics.same_incarnation and metrics.window_s > 0:
        before_s, after_s = metrics.before.process_cpu_s, metrics.after.process_cpu_s
        if before_s is not None and after_s is not None:
            return (after_s - before_s) / metrics.window_s
    return None if host is None else host.use.front_end_cores
