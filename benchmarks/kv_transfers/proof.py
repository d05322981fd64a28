"""By the engine's own counters: what of the prompts handed over to it did a decode engine compute again?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from resuming.timelines import ADMIN

from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient
from phasewise.core.engine_metrics import MetricsSnapshot, delta

BY_SOURCE = "prompt_tokens_by_source_total"


@dataclass
class Proof:
    """Counts over all that was watched. `kv_transfers` are answers that began on a decode side."""

    kv_transfers: int = 0
    whole: int = 0
    transferred_tokens: int = 0
    recomputed_prompt_tokens: int = 0
    kv_bytes: int = 0

    def add(
        self,
        before: MetricsSnapshot,
        after: MetricsSnapshot,
        records: Sequence[Mapping[str, Any]],
        worker: str,
    ) -> None:
        """Count what happened on the decode worker between two snapshots, and what records explain of it."""
        computed = grown(before, after, "local_compute")
        moved = delta(before, after).histogram("nixl_bytes_transferred")
        ways = [way_of(record) for record in records]
        self.kv_transfers += ways.count("decode_side")
        self.whole += ways.count("local")
        self.transferred_tokens += grown(before, after, "external_kv_transfer")
        self.recomputed_prompt_tokens += max(computed - explained_tokens(records, worker), 0)
        self.kv_bytes += 0 if moved is None else round(moved.total)


def grown(before: MetricsSnapshot, after: MetricsSnapshot, source: str) -> int:
    """How many prompt tokens came from this source in the meantime; what is not counted is no proof."""
    reported = delta(before, after)
    after_tokens = after.counter(BY_SOURCE, source=source)
    if after_tokens is None or not reported.same_incarnation:
        raise SystemExit(f"the decode engine was restarted, or does not count {BY_SOURCE}")
    return round(after_tokens - (before.counter(BY_SOURCE, source=source) or 0.0))


def way_of(record: Mapping[str, Any]) -> str:
    """How a request was served in the end: the kind of its last attempt."""
    attempts = record["attempts"]
    return str(attempts[-1]["kind"]) if attempts else "none"


def explained_tokens(records: Sequence[Mapping[str, Any]], worker: str) -> int:
    """Prompt tokens that this worker had to compute for requests that it served in one piece."""
    whole = (it for it in records if way_of(it) == "local" and it["attempts"][-1]["worker"][0] == worker)
    return sum(record.get("in", 0) - record.get("cached", 0) for record in whole)


async def snapshot(engine_url: str) -> MetricsSnapshot:
    """An engine's counters now."""
    client = HttpClient(engine_url)
    try:
        return await fetch_metrics(client)
    finally:
        client.close()


async def records_of(gateway_url: str) -> list[dict[str, Any]]:
    """Every request that a gateway remembers."""
    client = HttpClient(gateway_url)
    try:
        reply = await client.fetch("GET", "/phasewise/v1/requests?limit=2000", headers=ADMIN)
        return [orjson.loads(line) for line in reply.body.splitlines()]
    finally:
        client.close()
