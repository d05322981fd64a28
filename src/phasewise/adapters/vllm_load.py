"""How full an engine is right now, picked out of its /metrics.

Reading all of them takes a hundred times as long and is vllm_metrics.py's: this is asked every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean

from phasewise.adapters.http_client import HttpClient
from phasewise.diagnosis.surroundings import LoadReading

RUNNING = b"vllm:num_requests_running"
WAITING = b"vllm:num_requests_waiting"
KV_USAGE = b"vllm:kv_cache_usage_perc"


async def fetch_load(client: HttpClient, clock: Callable[[], float] = time.time) -> LoadReading | None:
    """Ask an engine for its load; None where it does not tell."""
    reply = await client.fetch("GET", "/metrics")
    return parse_load(reply.body, clock()) if reply.status == 200 else None


def parse_load(text: bytes, at_unix_s: float) -> LoadReading | None:
    """The gauges of Prometheus text, over all engine cores; None if one of them is missing or no number."""
    found: dict[bytes, list[float]] = {RUNNING: [], WAITING: [], KV_USAGE: []}
    for line in text.splitlines():
        if not line.startswith(b"vllm:"):
            continue
        name = line.partition(b" ")[0].partition(b"{")[0]
        if name in found:
            try:
                found[name].append(float(line.rpartition(b" ")[2]))
            except ValueError:
                return None
    if not all(found.values()):
        return None
    return LoadReading(
        at_unix_s=at_unix_s,
        running=round(sum(found[RUNNING])),
        waiting=round(sum(found[WAITING])),
        kv_usage=fmean(found[KV_USAGE]),
    )
