"""Asks an engine of any kind for its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from phasewise.clients.http_client import HttpClient, Reply
from phasewise.core.engine_metrics import KvCounters, LoadReading, MetricsSnapshot
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.engines.known import USUAL, engine_of
from phasewise.engines.port import Engine


async def identify_engine(client: HttpClient) -> Engine | None:
    """The kind of engine behind a client, also if it serves no metrics; None for another server."""
    reply = await client.fetch("GET", "/metrics")
    return engine_of(reply.body, reply.headers)


async def fetch_metrics(client: HttpClient, clock: Callable[[], float] = time.time) -> MetricsSnapshot:
    """Take a snapshot of the engine behind a client, timed at the middle of the exchange."""
    asked_s = clock()
    reply = await _fetched(client)
    taken_at_s = (asked_s + clock()) / 2
    return read_metrics(reply.body, taken_at_s)


def read_metrics(text: bytes, taken_at_unix_s: float) -> MetricsSnapshot:
    """The snapshot in an engine's text; an empty one of another server."""
    return (engine_of(text) or USUAL).parse_metrics(text.decode(errors="replace"), taken_at_unix_s)


async def fetch_load(client: HttpClient, clock: Callable[[], float] = time.time) -> LoadReading | None:
    """Read an engine's load; None if it does not report it."""
    reply = await client.fetch("GET", "/metrics")
    engine = engine_of(reply.body) if reply.status == 200 else None
    return None if engine is None else engine.parse_load(reply.body, clock())


async def fetch_kv_counters(client: HttpClient) -> KvCounters:
    """Where the KV of an engine's prompts came from; UpstreamError if it does not report it."""
    text = (await _fetched(client)).body
    return (engine_of(text) or USUAL).parse_kv_counters(text)


async def _fetched(client: HttpClient) -> Reply:
    reply = await client.fetch("GET", "/metrics")
    if reply.status != 200:
        engine = engine_of(reply.body, reply.headers) or USUAL
        raise UpstreamError(
            FailureKind.PROTOCOL,
            f"{client.base_url}/metrics answered {reply.status}",
            hint=engine.WITHOUT_METRICS,
        )
    return reply
