"""What an engine says of itself: how many tokens its KV cache holds, and which kernels compute attention.

How fast it is, is measured elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.vllm_metrics import fetch_metrics
from phasewise.bench.target import find_target
from phasewise.levers.engines import RunningEngine

_BACKEND = re.compile(r"Using ([A-Z][A-Z0-9_]+) (?:attention )?backend")
"""vLLM's own words, such as `Using FLASH_ATTN attention backend out of potential backends`."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Sizes of the KV cache, and the attention back end if the engine named it; None where it is silent."""

    kv_tokens: int | None = None
    block_tokens: int | None = None
    context_tokens: int | None = None
    attention_backend: str = ""


async def read_facts(engine: RunningEngine) -> EngineFacts:
    """Ask a running engine."""
    client = HttpClient(engine.url)
    try:
        metrics = await fetch_metrics(client)
        target = await find_target(client)
    finally:
        client.close()
    return EngineFacts(
        kv_tokens=metrics.kv_tokens,
        block_tokens=metrics.block_tokens,
        context_tokens=target.context_tokens,
        attention_backend=named_backend(engine.log),
    )


def named_backend(log: str) -> str:
    """The attention back end that an engine's log names; empty where it names none."""
    try:
        text = Path(log).read_text(errors="replace")
    except OSError:
        return ""
    found = _BACKEND.findall(text)
    return found[-1] if found else ""
