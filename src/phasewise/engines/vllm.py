"""vLLM: the names of its metrics, of its phase times and of its flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from phasewise.core.engine_metrics import KvCounters, LoadReading, MetricsSnapshot, Rank
from phasewise.core.timeline import Part, Source, Span
from phasewise.engines.figures import seconds_of
from phasewise.engines.listed_requests import Listing
from phasewise.engines.port import Ability
from phasewise.engines.prometheus_text import read_snapshot

TITLE = "vLLM"
SERVER: bytes | None = None
LISTING_PATH: str | None = None
TIMINGS = "metrics"
CAN = frozenset(Ability)
WITHOUT_METRICS = "vLLM serves /metrics unless it was started with --disable-log-stats"
WITHOUT_STEPS = "no step recorder answers (add it with `phasewise engine install --plugin-only`)"
PREFIX = "vllm:"
INFERENCE_PATHS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("/tokenize", "/detokenize", "/pooling", "/classify", "/v2/embed"), ("POST",)),
    **dict.fromkeys(("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"), ("POST",)),
    **dict.fromkeys(("/generative_scoring", "/v1/systemone"), ("POST",)),
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), ("POST",)),
    **dict.fromkeys(("/version", "/load"), ("GET",)),
    "/ping": ("GET", "POST"),
}


def speaks(metrics: bytes) -> bool:
    """Whether this text is from a vLLM's /metrics."""
    return PREFIX.encode() in metrics


def parse_metrics(text: str, taken_at_unix_s: float) -> MetricsSnapshot:
    """The metrics in its text. Its names are ours but for a prefix."""
    return read_snapshot(text, taken_at_unix_s, _without_prefix)


def _without_prefix(name: str) -> str | None:
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


# --- The current load, read several times a second, so without the full parser.

_SERIES = {
    b"vllm:num_requests_running": "running",
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:kv_cache_usage_perc": "kv_usage",
    b"vllm:iteration_tokens_total_count": "steps",
    b"vllm:iteration_tokens_total_sum": "step_tokens",
    b"vllm:prompt_tokens_total": "prompt_tokens",
    b"vllm:generation_tokens_total": "output_tokens",
    b"vllm:time_to_first_token_seconds_count": "first_tokens",
    b"vllm:time_to_first_token_seconds_sum": "ttft_sum_s",
    b"vllm:inter_token_latency_seconds_count": "gaps",
    b"vllm:inter_token_latency_seconds_sum": "gaps_sum_s",
    b"vllm:request_success_total": "finished",
    b"vllm:num_preemptions_total": "preemptions",
    b"vllm:prefix_cache_queries_total": "prefix_queries",
    b"vllm:prefix_cache_hits_total": "prefix_hits",
}
_GAUGES = ("running", "waiting", "kv_usage")
_LABELLED = (
    (b"vllm:request_success_total", b'finished_reason="abort"', "aborted"),
    (b"http_requests_total", b'status="4', "rejected"),
    (b"http_requests_total", b'status="5', "failed"),
)
_READ = frozenset({*_SERIES, *(bare for bare, _, _ in _LABELLED)})


def parse_load(text: bytes, at_unix_s: float) -> LoadReading | None:
    """The load in Prometheus text, over all engine cores; None if a gauge is missing or no number."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        # Most lines are buckets of histograms: this comes first, because it is done for every one of them.
        name = line.partition(b"{")[0].partition(b" ")[0]
        if name not in _READ:
            continue
        series, _, value = line.rpartition(b" ")
        if name == b"http_requests_total" and b'handler="/v1/' not in series:
            continue
        fields = [field for bare, label, field in _LABELLED if bare == name and label in series]
        if name in _SERIES:
            fields.append(_SERIES[name])
        for field in fields:
            try:
                found.setdefault(field, []).append(float(value))
            except ValueError:
                return None
    if any(name not in found for name in _GAUGES):
        return None
    return LoadReading(
        at_unix_s=at_unix_s,
        running=round(sum(found.pop("running"))),
        waiting=round(sum(found.pop("waiting"))),
        kv_usage=fmean(found.pop("kv_usage")),
        **{name: sum(values) for name, values in found.items()},
    )


# --- Where the KV of its prompts came from.

_BY_SOURCE = b"vllm:prompt_tokens_by_source_total"
_SOURCE = re.compile(rb'source="([^"]*)"')
_CONNECTOR = b"\nvllm:nixl_"


def parse_kv_counters(text: bytes) -> KvCounters:
    """The counters in Prometheus text; lines without a valid number are skipped."""
    sums: dict[bytes, float] = {}
    for line in text.splitlines():
        if not line.startswith((_BY_SOURCE, b"vllm:nixl_")):
            continue
        name, _, value = line.rpartition(b" ")
        bare = name.partition(b"{")[0]
        if bare == _BY_SOURCE and (source := _SOURCE.search(name)):
            bare = source[1]
        try:
            sums[bare] = sums.get(bare, 0.0) + float(value)
        except ValueError:
            continue
    released = b"vllm:nixl_num_notifications_after_expiry"
    return KvCounters(
        moved_tokens=sums.get(b"external_kv_transfer"),
        hit_tokens=sums.get(b"local_cache_hit"),
        computed_tokens=sums.get(b"local_compute"),
        moved_bytes=sums.get(b"vllm:nixl_bytes_transferred_sum"),
        moving_s=sums.get(b"vllm:nixl_xfer_time_seconds_sum"),
        read_after_release=sums.get(released + b"_total", sums.get(released)),
        has_connector=_CONNECTOR in text,
    )


# --- Whether it makes progress.

_PROGRESS = re.compile(
    rb"^vllm:(generation_tokens_total|prompt_tokens_total|kv_cache_usage_perc|iteration_tokens_total_count"
    rb"|num_requests_running|engine_sleep_state)\{([^}\n]*)\} (\S+)",
    re.MULTILINE,
)
_RANK = re.compile(rb'engine="([^"]*)"')
_AWAKE = b'sleep_state="awake"'


def ranks_of(metrics: bytes) -> dict[str, Rank]:
    """The ranks of a worker, from its metrics; empty if they are not vLLM's."""
    signs: dict[str, list[bytes]] = {}
    running: set[str] = set()
    asleep: set[str] = set()
    kv_used: dict[str, float] = {}
    for name, labels, number in _PROGRESS.findall(metrics):
        found = _RANK.search(labels)
        rank = "0" if found is None else found[1].decode(errors="replace")
        if name == b"num_requests_running":
            if float(number) > 0:
                running.add(rank)
        elif name == b"engine_sleep_state":
            if _AWAKE in labels and float(number) == 0:
                asleep.add(rank)
        else:
            signs.setdefault(rank, []).append(number)
            if name == b"kv_cache_usage_perc":
                kv_used[rank] = float(number)
    return {
        rank: Rank(tuple(numbers), rank in running, rank in asleep, kv_used.get(rank, 0.0))
        for rank, numbers in signs.items()
    }


def parse_listing(body: bytes) -> Listing | None:
    """It lists no requests; its step recorder names them."""
    return None


# --- The phases of one request, in its reply.

_PARTS_MS = (
    ("queue_time_ms", Part.ENGINE_QUEUE),
    # Despite its name, this runs from scheduled to first token and excludes the queue.
    ("time_to_first_token_ms", Part.PREFILL),
    ("generation_time_ms", Part.DECODE),
)


def phase_spans(metrics: Mapping[str, Any]) -> tuple[Span, ...]:
    """The phases that the engine timed. It reports durations, not start times."""
    durations = ((part, seconds_of(metrics.get(name))) for name, part in _PARTS_MS)
    return tuple(
        Span(part, Source.ENGINE_REPORT, seconds) for part, seconds in durations if seconds is not None
    )


# --- How it computes.

BFLOAT16 = "bfloat16"


def number_format_of(command: Sequence[str]) -> str | None:
    """The number format that an engine started so computes in; None if it is not one of ours."""
    if not any("vllm" in word for word in command):
        return None
    flag = FLAGS["number_format"]
    named = [value for name, value in pairwise(command) if name == flag]
    named += [word.removeprefix(f"{flag}=") for word in command if word.startswith(f"{flag}=")]
    # By default it takes the format of the model's file, which is nearly always this one.
    chosen = named[-1] if named else "auto"
    return BFLOAT16 if chosen == "auto" else chosen


def settings_of(command: Sequence[str]) -> Mapping[str, int]:
    """None: its metrics and its steps show them."""
    return {}


# --- Its flags.


LONGEST_MATCH_TOKENS = 4


def flags(name: str, value: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - each setting has its own type
    """The arguments that give a setting this value; None if it has no such setting."""
    if name == "prefix_cache":
        return ("--enable-prefix-caching" if value else "--no-enable-prefix-caching",)
    if name == "compiled":
        return ("--no-enforce-eager" if value else "--enforce-eager",)
    if name == "speculation":
        settings = {
            "method": value["method"],
            "num_speculative_tokens": value["tokens"],
            "prompt_lookup_max": value.get("lookup_max", LONGEST_MATCH_TOKENS),
        }
        return FLAGS[name], json.dumps(settings, separators=(",", ":"))
    if name == "failed_kv_transfers":
        settings = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_consumer",
            "kv_load_failure_policy": value,
        }
        return FLAGS[name], json.dumps(settings, separators=(",", ":"))
    if value is True and name in FLAGS:
        return (FLAGS[name],)
    return (FLAGS[name], str(value)) if name in FLAGS else None


FLAGS: Mapping[str, str] = {
    "prefix_cache": "--[no-]enable-prefix-caching",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_num_seqs": "--max-num-seqs",
    "speculation": "--speculative-config",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "kv_dtype": "--kv-cache-dtype",
    "max_model_len": "--max-model-len",
    "weight_quantization": "--quantization",
    "attention_backend": "--attention-backend",
    "front_ends": "--api-server-count",
    "tokens_per_chunk": "--stream-interval",
    "number_format": "--dtype",
    "devices": "--tensor-parallel-size",
    "compiled": "--[no-]enforce-eager",
    "failed_kv_transfers": "--kv-transfer-config",
    "gpu_memory_share": "--gpu-memory-utilization",
    "phase_times": "--enable-per-request-metrics",
    "cached_tokens": "--enable-prompt-tokens-details",
    "step_tokens": "--enable-logging-iteration-details",
}
"""The flag of each setting. The first are levers, the keys of a fleet file; the last make it report more."""
