"""vLLM: the names of its metrics, of its phase times and of its flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from phasewise.core.engine_metrics import KvCounters, LoadReading, MetricsPage, MetricsSnapshot, Rank
from phasewise.engines.listed_requests import Listing
from phasewise.engines.port import Ability
from phasewise.engines.prometheus_text import Samples, read_snapshot, scan, summed

TITLE = "vLLM"
SERVER: bytes | None = None
LISTING_PATH: str | None = None
TIMINGS = "metrics"
PHASES_MS: Mapping[str, str] = {
    "queue_time_ms": "queue_s",
    # Despite its name, this runs from scheduled to first token and excludes the queue.
    "time_to_first_token_ms": "prefill_s",
    "generation_time_ms": "decode_s",
}
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


def parse_metrics(text: str, taken_at_unix_s: float) -> MetricsSnapshot:
    """The metrics in its text. Its names are ours but for a prefix."""
    return read_snapshot(text, taken_at_unix_s, _without_prefix)


def _without_prefix(name: str) -> str | None:
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


# --- What is read of its metrics several times a second: the load, where KV came from, signs of progress.

_RUNNING = b"vllm:num_requests_running"
_WAITING = b"vllm:num_requests_waiting"
_KV_USAGE = b"vllm:kv_cache_usage_perc"
_TOTALS = {
    "steps": b"vllm:iteration_tokens_total_count",
    "step_tokens": b"vllm:iteration_tokens_total_sum",
    "prompt_tokens": b"vllm:prompt_tokens_total",
    "output_tokens": b"vllm:generation_tokens_total",
    "first_tokens": b"vllm:time_to_first_token_seconds_count",
    "ttft_sum_s": b"vllm:time_to_first_token_seconds_sum",
    "gaps": b"vllm:inter_token_latency_seconds_count",
    "gaps_sum_s": b"vllm:inter_token_latency_seconds_sum",
    "finished": b"vllm:request_success_total",
    "preemptions": b"vllm:num_preemptions_total",
    "prefix_queries": b"vllm:prefix_cache_queries_total",
    "prefix_hits": b"vllm:prefix_cache_hits_total",
}
_REPLIES = b"http_requests_total"
_BY_SOURCE = b"vllm:prompt_tokens_by_source_total"
_MOVED_BYTES = b"vllm:nixl_bytes_transferred_sum"
_MOVING_S = b"vllm:nixl_xfer_time_seconds_sum"
_AFTER_RELEASE = b"vllm:nixl_num_notifications_after_expiry"
_CONNECTOR = b"\nvllm:nixl_"
_SLEEP = b"vllm:engine_sleep_state"
_SIGNS = (_TOTALS["output_tokens"], _TOTALS["prompt_tokens"], _KV_USAGE, _TOTALS["steps"])
_READ = frozenset(
    {_RUNNING, _WAITING, _KV_USAGE, *_TOTALS.values(), _REPLIES, _BY_SOURCE, _MOVED_BYTES, _MOVING_S}
    | {_AFTER_RELEASE, _AFTER_RELEASE + b"_total", _SLEEP}
)
_RANK = re.compile(rb'engine="([^"]*)"')


def read_page(page: bytes, at_unix_s: float) -> MetricsPage:
    """What is read of its metrics several times a second, over all engine cores."""
    samples = scan(page, _READ)
    return MetricsPage(
        _load(samples, at_unix_s), _kv_counters(samples, has_connector=_CONNECTOR in page), _ranks(samples)
    )


def _load(samples: Samples, at_unix_s: float) -> LoadReading | None:
    running, waiting = summed(samples, _RUNNING), summed(samples, _WAITING)
    kv_usage = [share for _, share in samples.get(_KV_USAGE, ())]
    if running is None or waiting is None or not kv_usage:
        return None
    # Other replies of the server, such as our own for /metrics, are not the API's.
    of_api = [sample for sample in samples.get(_REPLIES, ()) if b'handler="/v1/' in sample[0]]
    replies = {_REPLIES: of_api}
    return LoadReading(
        at_unix_s=at_unix_s,
        running=round(running),
        waiting=round(waiting),
        kv_usage=fmean(kv_usage),
        aborted=summed(samples, _TOTALS["finished"], b'finished_reason="abort"'),
        rejected=summed(replies, _REPLIES, b'status="4'),
        failed=summed(replies, _REPLIES, b'status="5'),
        **{field: summed(samples, name) for field, name in _TOTALS.items()},
    )


def _kv_counters(samples: Samples, *, has_connector: bool) -> KvCounters:
    released = summed(samples, _AFTER_RELEASE + b"_total")
    return KvCounters(
        moved_tokens=summed(samples, _BY_SOURCE, b'source="external_kv_transfer"'),
        hit_tokens=summed(samples, _BY_SOURCE, b'source="local_cache_hit"'),
        computed_tokens=summed(samples, _BY_SOURCE, b'source="local_compute"'),
        moved_bytes=summed(samples, _MOVED_BYTES),
        moving_s=summed(samples, _MOVING_S),
        read_after_release=summed(samples, _AFTER_RELEASE) if released is None else released,
        has_connector=has_connector,
    )


def _ranks(samples: Samples) -> dict[str, Rank]:
    signs: dict[str, list[float]] = {}
    for name in _SIGNS:
        for labels, value in samples.get(name, ()):
            signs.setdefault(_rank_of(labels), []).append(value)
    running = {_rank_of(labels) for labels, value in samples.get(_RUNNING, ()) if value > 0}
    asleep = {
        _rank_of(labels)
        for labels, value in samples.get(_SLEEP, ())
        if b'sleep_state="awake"' in labels and value == 0
    }
    kv_used = {_rank_of(labels): share for labels, share in samples.get(_KV_USAGE, ())}
    return {
        rank: Rank(tuple(values), rank in running, rank in asleep, kv_used.get(rank, 0.0))
        for rank, values in signs.items()
    }


def _rank_of(labels: bytes) -> str:
    found = _RANK.search(labels)
    return "0" if found is None else found[1].decode(errors="replace")


def parse_listing(body: bytes) -> Listing | None:
    """It lists no requests; its step recorder names them."""
    return None


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
