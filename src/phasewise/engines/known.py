"""The kinds of engines that have an adapter."""

from __future__ import annotations

from phasewise.engines import vllm
from phasewise.engines.port import Engine

ENGINES: tuple[Engine, ...] = (vllm,)
USUAL: Engine = vllm


def engine_of(metrics: bytes) -> Engine | None:
    """The kind of engine whose /metrics this is; None for another server's."""
    return next((engine for engine in ENGINES if engine.speaks(metrics)), None)
