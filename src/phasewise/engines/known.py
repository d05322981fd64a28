"""The kinds of engines that have an adapter."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.core.engine_metrics import MetricsPage
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


def read_page(page: bytes, at_unix_s: float) -> MetricsPage:
    """What a page of metrics says, whichever kind of engine wrote it; nothing of another server's."""
    return (engine_of(page) or USUAL).read_page(page, at_unix_s)


def engine_named(title: str | None) -> Engine:
    """The kind of engine of that name; the usual one if there is none."""
    return next((engine for engine in ENGINES if title == engine.TITLE), USUAL)
