"""llama.cpp's server: the names of its metrics, of its slots, of its timings and of its flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson

from phasewise.core.engine_metrics import KvCounters, LoadReading, MetricsSnapshot, Rank, Series
from phasewise.core.timeline import Part, Source, Span
from phasewise.engines.figures import count_of, seconds_of
from phasewise.engines.listed_requests import ListedRequest, Listing
from phasewise.engines.port import Ability
from phasewise.engines.prometheus_text import read_snapshot

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
CAN: frozenset[Ability] = frozenset()


def speaks(metrics: bytes) -> bool:
    """Whether this text is from a llama.cpp's /metrics."""
    return PREFIX.encode() in metrics


# --- Its metrics.

_NAMES = {
    "llamacpp:requests_processing": Series.RUNNING,
    "llamacpp:requests_deferred": Series.WAITING,
    "llamacpp:prompt_tokens_total": Series.PROMPT_TOKENS,
    "llamacpp:tokens_predicted_total": Series.OUTPUT_TOKENS,
    "llamacpp:prompt_tokens_cached_total": Series.PREFIX_HITS,
}


def parse_metrics(text: str, taken_at_unix_s: float) -> MetricsSnapshot:
    """The metrics in its text. Its prompt tokens are without cached ones: both together were asked for."""
    found = read_snapshot(text, taken_at_unix_s, _translated)
    asked = [found.counter(name) for name in (Series.PROMPT_TOKENS, Series.PREFIX_HITS)]
    if None in asked:
        return found
    queries = (Series.PREFIX_QUERIES, frozenset[tuple[str, str]]())
    return replace(found, counters={**found.counters, queries: sum(filter(None, asked))})


def _translated(name: str) -> str | None:
    # A counter's family is named without its ending.
    return _NAMES.get(name) or _NAMES.get(f"{name}_total")


_LOADS = {
    b"llamacpp:requests_processing": "running",
    b"llamacpp:requests_deferred": "waiting",
    b"llamacpp:n_decode_total": "steps",
    b"llamacpp:prompt_tokens_total": "prompt_tokens",
    b"llamacpp:tokens_predicted_total": "output_tokens",
    b"llamacpp:prompt_tokens_cached_total": "prefix_hits",
}


def parse_load(text: bytes, at_unix_s: float) -> LoadReading | None:
    """The load in Prometheus text; None if a gauge is missing. The use of its KV cache is in its slots."""
    found = _numbers(text)
    if "running" not in found or "waiting" not in found:
        return None
    return LoadReading(
        at_unix_s=at_unix_s,
        running=round(found.pop("running")),
        waiting=round(found.pop("waiting")),
        kv_usage=None,
        **found,
    )


def _numbers(text: bytes) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        name, _, number = line.rpartition(b" ")
        if name in _LOADS:
            try:
                found[_LOADS[name]] = float(number)
            except ValueError:
                continue
    return found


def parse_kv_counters(text: bytes) -> KvCounters:
    """Its KV is its own: none is moved."""
    found = _numbers(text)
    return KvCounters(hit_tokens=found.get("prefix_hits"), computed_tokens=found.get("prompt_tokens"))


_PROGRESS = re.compile(
    rb"^llamacpp:(?:n_decode_total|prompt_tokens_total|tokens_predicted_total) (\S+)", re.MULTILINE
)


def ranks_of(metrics: bytes) -> dict[str, Rank]:
    """It has one rank, whose decodes are counted with every step; empty if this is another's text."""
    signs = tuple(_PROGRESS.findall(metrics))
    running = _numbers(metrics).get("running", 0.0) > 0
    return {"0": Rank(signs, running, asleep=False, kv_used=0.0)} if signs else {}


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
    made = count_of((following[0] if isinstance(following, list) else following).get("n_decoded")) or 0
    return ListedRequest(
        number=slot["id_task"],
        slot=slot["id"],
        # Its prompt's tokens grow with its answer's.
        prompt_tokens=max(0, (count_of(slot.get("n_prompt_tokens")) or 0) - made),
        computed_tokens=count_of(slot.get("n_prompt_tokens_processed")) or 0,
        cached_tokens=count_of(slot.get("n_prompt_tokens_cache")) or 0,
        output_tokens=made,
    )


# --- The phases of one request, in its reply.

_PARTS_MS = (("prompt_ms", Part.PREFILL), ("predicted_ms", Part.DECODE))


def phase_spans(metrics: Mapping[str, Any]) -> tuple[Span, ...]:
    """The phases in a reply's `timings`. The wait for a slot is not among them."""
    durations = ((part, seconds_of(metrics.get(name))) for name, part in _PARTS_MS)
    return tuple(
        Span(part, Source.ENGINE_REPORT, seconds) for part, seconds in durations if seconds is not None
    )


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
