"""Where an engine's prompts had their KV from, picked out of its /metrics.

Reading all of them takes a hundred times as long and is vllm_metrics.py's: the gateway asks while it serves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from phasewise.adapters.http_client import HttpClient
from phasewise.errors import FailureKind, UpstreamError

_BY_SOURCE = b"vllm:prompt_tokens_by_source_total"
_SOURCE = re.compile(rb'source="([^"]*)"')
_CONNECTOR = b"\nvllm:nixl_"


@dataclass(frozen=True, slots=True)
class KvCounters:
    """What an engine has counted so far, over all its cores; None where it counts no such thing.

    Prompt tokens are `moved` if their KV was fetched, `hit` if the engine had it, else `computed`.
    `read_after_release` counts KV that others fetched from this engine when it had given its place away.
    """

    moved_tokens: float | None = None
    hit_tokens: float | None = None
    computed_tokens: float | None = None
    moved_bytes: float | None = None
    moving_s: float | None = None
    read_after_release: float | None = None
    has_connector: bool = False


async def fetch_kv_counters(client: HttpClient) -> KvCounters:
    """Ask an engine; UpstreamError where it does not tell."""
    reply = await client.fetch("GET", "/metrics")
    if reply.status != 200:
        raise UpstreamError(FailureKind.PROTOCOL, f"/metrics answered {reply.status}")
    return parse_kv_counters(reply.body)


def parse_kv_counters(text: bytes) -> KvCounters:
    """The counters of Prometheus text; a line that is no number is left out."""
    sums: dict[bytes, float] = {}
    for line in text.splitlines():
        if not line.startswith((_BY_SOURCE, b"vllm:nixl_")):
            continue
        name, _, value = line.rpartition(b" ")
        bare = name.partition(b"{")[0]
        if bare == _BY_SOURCE and (source := _SOURCE.search(name)):
            bare = source[1]
        try:
            sums[bare] = sums.get(bare, 0.0) + float(value)
        except ValueError:
            continue
    released = b"vllm:nixl_num_notifications_after_expiry"
    return KvCounters(
        moved_tokens=sums.get(b"external_kv_transfer"),
        hit_tokens=sums.get(b"local_cache_hit"),
        computed_tokens=sums.get(b"local_compute"),
        moved_bytes=sums.get(b"vllm:nixl_bytes_transferred_sum"),
        moving_s=sums.get(b"vllm:nixl_xfer_time_seconds_sum"),
        read_after_release=sums.get(released + b"_total", sums.get(released)),
        has_connector=_CONNECTOR in text,
    )
