"""llama.cpp's server: the names of its metrics, of its slots, of its timings and of its flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson

from phasewise.core.engine_metrics import (
    EngineSeries,
    KvCounters,
    LoadReading,
    MetricsPage,
    MetricsSnapshot,
    Rank,
)
from phasewise.engines.listed_requests import ListedRequest, Listing
from phasewise.engines.port import Ability
from phasewise.engines.prometheus_text import read_snapshot, scan, summed

TITLE = "llama.cpp"
WITHOUT_METRICS = "start llama-server with --metrics"
WITHOUT_STEPS = "it does not show its slots (start llama-server with --slots)"
SERVER: bytes | None = b"llama.cpp"
"""What it calls itself in the `Server` header of every reply."""
PREFIX = "llamacpp:"
INFERENCE_PATHS: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("/tokenize", "/detokenize", "/rerank", "/v1/rerank", "/reranking", "/v1/reranking"), ("POST",)
)
TIMINGS = "timings"
# The wait for a slot is not among them.
PHASES_MS: Mapping[str, str] = {"prompt_ms": "prefill_s", "predicted_ms": "decode_s"}
CAN: frozenset[Ability] = frozenset()


# --- Its metrics.

_NAMES = {
    "llamacpp:requests_processing": EngineSeries.RUNNING,
    "llamacpp:requests_deferred": EngineSeries.WAITING,
    "llamacpp:prompt_tokens_total": EngineSeries.PROMPT_TOKENS,
    "llamacpp:tokens_predicted_total": EngineSeries.OUTPUT_TOKENS,
    "llamacpp:prompt_tokens_cached_total": EngineSeries.PREFIX_HITS,
}


def parse_metrics(text: str, taken_at_unix_s: float) -> MetricsSnapshot:
    """The metrics in its text. Its prompt tokens are without cached ones: both together were asked for."""
    found = read_snapshot(text, taken_at_unix_s, _translated)
    asked = [found.counter(name) for name in (EngineSeries.PROMPT_TOKENS, EngineSeries.PREFIX_HITS)]
    if None in asked:
        return found
    queries = (EngineSeries.PREFIX_QUERIES, frozenset[tuple[str, str]]())
    return replace(found, counters={**found.counters, queries: sum(filter(None, asked))})


def _translated(name: str) -> str | None:
    # A counter's family is named without its ending.
    return _NAMES.get(name) or _NAMES.get(f"{name}_total")


_RUNNING = b"llamacpp:requests_processing"
_WAITING = b"llamacpp:requests_deferred"
_TOTALS = {
    "steps": b"llamacpp:n_decode_total",
    "prompt_tokens": b"llamacpp:prompt_tokens_total",
    "output_tokens": b"llamacpp:tokens_predicted_total",
    "prefix_hits": b"llamacpp:prompt_tokens_cached_total",
}
_READ = frozenset({_RUNNING, _WAITING, *_TOTALS.values()})


def read_page(page: bytes, at_unix_s: float) -> MetricsPage:
    """What is read of its metrics several times a second.

    The use of its KV cache is in its slots; its KV is its own, and none is moved. Its one rank counts its
    decodes with every step.
    """
    samples = scan(page, _READ)
    running, waiting = summed(samples, _RUNNING), summed(samples, _WAITING)
    totals = {field: summed(samples, name) for field, name in _TOTALS.items()}
    load = None
    if running is not None and waiting is not None:
        load = LoadReading(at_unix_s, round(running), round(waiting), kv_usage=None, **totals)
    signs = tuple(total for field, total in totals.items() if field != "prefix_hits" and total is not None)
    rank = Rank(signs, running=(running or 0.0) > 0, asleep=False, kv_used=0.0)
    kv = KvCounters(hit_tokens=totals["prefix_hits"], computed_tokens=totals["prompt_tokens"])
    return MetricsPage(load, kv, {"0": rank} if signs else {})


# --- Its slots: the requests that it computes now.

LISTING_PATH: str | None = "/slots"


def parse_listing(body: bytes) -> Listing | None:
    """The requests in its slots; None if it does not show them. An idle slot has its last one's number."""
    try:
        slots = orjson.loads(body)
        return Listing(
            tuple(_listed(slot) for slot in slots if slot["is_processing"]),
            context_tokens=sum(slot["n_ctx"] for slot in slots),
        )
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None


def _listed(slot: Mapping[str, Any]) -> ListedRequest:
    following = slot.get("next_token") or {}
    made = _count(following[0] if isinstance(following, list) else following, "n_decoded")
    return ListedRequest(
        number=slot["id_task"],
        slot=slot["id"],
        # Its prompt's tokens grow with its answer's.
        prompt_tokens=max(0, _count(slot, "n_prompt_tokens") - made),
        computed_tokens=_count(slot, "n_prompt_tokens_processed"),
        cached_tokens=_count(slot, "n_prompt_tokens_cache"),
        output_tokens=made,
    )


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if type(value) is int and value > 0 else 0


# --- How it computes, and its flags.


def number_format_of(command: Sequence[str]) -> str | None:
    """Unknown: the weights' file has it, and it converts what the processor has no instructions for."""
    return None


def settings_of(command: Sequence[str]) -> Mapping[str, int]:
    """The sizes on a server's command line, and whether it keeps prompts."""
    if not any("llama" in word for word in command):
        return {}
    found = {
        name: int(value)
        for flag, value in pairwise(command)
        for name, forms in _FORMS.items()
        if flag in forms and value.isdecimal()
    }
    return found | ({"prefix_cache": 0} if "--no-cache-prompt" in command else {})


def flags(name: str, value: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - each setting has its own type
    """The arguments that give a setting this value; None if it has no such setting."""
    if name == "prefix_cache":
        return ("--cache-prompt" if value else "--no-cache-prompt",)
    if name == "max_num_batched_tokens":
        # The smaller of the two sizes cuts a prompt.
        return FLAGS[name], str(value), "-b", str(value)
    return (FLAGS[name], str(value)) if name in FLAGS else None


FLAGS: Mapping[str, str] = {
    "prefix_cache": "--[no-]cache-prompt",
    "max_num_batched_tokens": "-ub",
    "max_num_seqs": "-np",
    "draft_model": "-md",
    "max_model_len": "-c",
    "threads": "-t",
}
"""The flag of each setting: the levers of a fleet file first."""
_FORMS = {
    "max_num_batched_tokens": ("-ub", "--ubatch-size"),
    "threads": ("-t", "--threads"),
}
