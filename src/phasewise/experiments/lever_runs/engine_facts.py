"""What an engine reports about itself: the size of its KV cache, and its attention kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient
from phasewise.experiments.lever_runs.engines import RunningEngine
from phasewise.loadgen.target import find_target

_BACKEND = re.compile(r"Using ([A-Z][A-Z0-9_]+) (?:attention )?backend")
"""vLLM's own wording, such as `Using FLASH_ATTN attention backend out of potential backends`."""


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """Sizes of the KV cache, and the attention backend; None where the engine does not report them."""

    kv_tokens: int | None = None
    block_tokens: int | None = None
    context_tokens: int | None = None
    attention_backend: str = ""


async def read_facts(engine: RunningEngine) -> EngineSizes:
    """Ask a running engine."""
    client = HttpClient(engine.url)
    try:
        metrics = await fetch_metrics(client)
        target = await find_target(client)
    finally:
        client.close()
    return EngineSizes(
        kv_tokens=metrics.kv_tokens,
        block_tokens=metrics.block_tokens,
        context_tokens=target.context_tokens,
        attention_backend=named_backend(engine.log),
    )


def named_backend(log: str) -> str:
    """The attention backend that an engine's log names; empty if it names none."""
    try:
        text = Path(log).read_text(errors="replace")
    except OSError:
        return ""
    found = _BACKEND.findall(text)
    return found[-1] if found else ""
