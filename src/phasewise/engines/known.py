"""The kinds of engines that have an adapter; reads a page of metrics or a reply, whichever kind wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from phasewise.core.engine_metrics import MetricsPage
from phasewise.core.timeline import EngineAccount
from phasewise.engines import llama_cpp, vllm
from phasewise.engines.port import Engine

ENGINES: tuple[Engine, ...] = (vllm, llama_cpp)
USUAL: Engine = vllm
INFERENCE_PATHS = {
    path: methods for engine in reversed(ENGINES) for path, methods in engine.INFERENCE_PATHS.items()
}
"""Of every kind: an engine that lacks one says so itself."""


def engine_of(metrics: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> Engine | None:
    """The kind of engine whose reply to /metrics this is; None for another server's."""
    servers = [value for name, value in headers if name.lower() == b"server"]
    counting = (engine for engine in ENGINES if engine.PREFIX.encode() in metrics)
    named = (engine for engine in ENGINES for server in servers if server == engine.SERVER)
    return next(counting, None) or next(named, None)


def read_page(page: bytes, at_unix_s: float) -> MetricsPage:
    """What a page of metrics says, whichever kind of engine wrote it; nothing of another server's."""
    return (engine_of(page) or USUAL).read_page(page, at_unix_s)


def engine_named(title: str | None) -> Engine:
    """The kind of engine of that name; the usual one if there is none."""
    return next((engine for engine in ENGINES if title == engine.TITLE), USUAL)


# --- What a reply says of its request: counts of tokens and times of phases.


def read_account(reply: Mapping[str, Any]) -> EngineAccount | None:
    """What a plain reply, or the last chunk of a stream, says; None if it has neither counts nor times."""
    usage, phases_s = _usage(reply), _phases_s(reply)
    if not usage and not phases_s:
        return None
    details = usage.get("prompt_tokens_details")
    return EngineAccount(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        output_tokens=_count(usage.get("completion_tokens")),
        queue_s=phases_s.get("queue_s"),
        prefill_s=phases_s.get("prefill_s"),
        decode_s=phases_s.get("decode_s"),
    )


def _usage(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The counts under the names of OpenAI's chat completions.

    The input tokens of /v1/messages leave out those that were read from the engine's cache or written to it.
    """
    usage = reply.get("usage")
    if not isinstance(usage, dict):
        return {}
    if "input_tokens" not in usage:
        return usage
    cached = usage.get("cache_read_input_tokens")
    counts = (usage["input_tokens"], cached, usage.get("cache_creation_input_tokens"))
    details = usage.get("input_tokens_details")
    return {
        "prompt_tokens": sum(count for count in counts if type(count) is int),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": details if isinstance(details, dict) else {"cached_tokens": cached},
    }


def _phases_s(reply: Mapping[str, Any]) -> dict[str, float]:
    """The times of the phases, by the account's fields."""
    for engine in ENGINES:
        timings = reply.get(engine.TIMINGS)
        if isinstance(timings, dict):
            timed = ((field, _seconds(timings.get(name))) for name, field in engine.PHASES_MS.items())
            return {field: seconds for field, seconds in timed if seconds is not None}
    return {}


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None  # a bool is an int too


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    return milliseconds / 1000 if isfinite(milliseconds) and milliseconds >= 0 else None
