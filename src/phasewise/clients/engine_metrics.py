"""Asks an engine of any kind for its metrics."""

from __future__ import annotations

import time

from phasewise.clients.http_client import HttpClient
from phasewise.core.engine_metrics import MetricsPage, MetricsSnapshot
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.engines.known import USUAL, engine_of, read_page
from phasewise.engines.port import Engine


async def identify_engine(client: HttpClient) -> Engine | None:
    """The kind of engine behind a client, also if it serves no metrics; None for another server."""
    reply = await client.fetch("GET", "/metrics")
    return engine_of(reply.body, reply.headers)


async def fetch_metrics(client: HttpClient) -> MetricsSnapshot:
    """Take a snapshot of the engine behind a client, timed at the middle of the exchange."""
    asked_s = time.time()
    text = await fetch_text(client)
    return read_metrics(text, (asked_s + time.time()) / 2)


def read_metrics(text: bytes, taken_at_unix_s: float) -> MetricsSnapshot:
    """The snapshot in an engine's text; an empty one of another server."""
    return (engine_of(text) or USUAL).parse_metrics(text.decode(errors="replace"), taken_at_unix_s)


async def fetch_page(client: HttpClient) -> MetricsPage:
    """The load of the engine behind a client, its counters of KV, and the progress of its ranks."""
    return read_page(await fetch_text(client), time.time())


async def fetch_text(client: HttpClient) -> bytes:
    """The engine's metrics as it writes them; UpstreamError if it serves none."""
    reply = await client.fetch("GET", "/metrics")
    if reply.status != 200:
        engine = engine_of(reply.body, reply.headers) or USUAL
        raise UpstreamError(
            FailureKind.PROTOCOL,
            f"{client.base_url}/metrics answered {reply.status}",
            hint=engine.WITHOUT_METRICS,
        )
    return reply.body
