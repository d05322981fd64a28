"""The kinds of engines that have an adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phasewise.core.timeline import Span
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
    named = (engine for engine in ENGINES for server in servers if server == engine.SERVER)
    return next((engine for engine in ENGINES if engine.speaks(metrics)), None) or next(named, None)


def engine_named(title: str | None) -> Engine:
    """The kind of engine of that name; the usual one if there is none."""
    return next((engine for engine in ENGINES if title == engine.TITLE), USUAL)


def timings_in(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a reply, or a part of a stream, says of its phases, whichever kind of engine sent it."""
    for engine in ENGINES:
        if isinstance(found := reply.get(engine.TIMINGS), dict):
            return found
    return None


def phase_spans(metrics: Mapping[str, Any] | None) -> tuple[Span, ...]:
    """The phases of one request, whichever kind of engine timed them."""
    if not metrics:
        return ()
    return next((spans for engine in ENGINES if (spans := engine.phase_spans(metrics))), ())
