"""Identifies an address: a phasewise gateway with its engines, or a single engine."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from phasewise.clients.http_client import Headers, HttpClient, Reply, Timeouts
from phasewise.clients.step_feed import default_steps_url
from phasewise.core.errors import ConfigError, EngineUnreachable, FailureKind, UpstreamError
from phasewise.diagnosis.observed.observation import TargetKind, WatchedEngine

QUICK = Timeouts(connect_s=3.0, head_s=15.0, idle_s=15.0)


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """An address, its kind, and the engines behind it."""

    url: str
    kind: TargetKind
    engines: tuple[WatchedEngine, ...]


def admin_headers(admin_key: str | None) -> Headers:
    """The headers for a gateway's admin routes."""
    return ((b"authorization", b"Bearer " + admin_key.encode()),) if admin_key else ()


async def identify(url: str, admin_key: str | None, steps_url: str | None = None) -> WatchTarget:
    """Identify the server at an address."""
    client = HttpClient(url, QUICK)
    try:
        reply = await _get(client, "/phasewise/v1/workers", admin_headers(admin_key))
        if reply.status == 200:
            return WatchTarget(client.base_url, TargetKind.GATEWAY, _engines(reply))
        if reply.status in {401, 403}:
            raise ConfigError(
                f"{client.base_url} is a phasewise gateway and requires its admin key",
                hint="set PHASEWISE_ADMIN_KEY, or diagnose an engine's own port",
            )
        metrics = await _get(client, "/metrics")
        if metrics.status != 200 or b"vllm:" not in metrics.body:
            raise ConfigError(
                f"{client.base_url} is neither a phasewise gateway nor a vLLM engine",
                hint="give the address of vLLM's API without /v1",
            )
        engine = WatchedEngine(
            client.base_url, client.base_url, steps_url or default_steps_url(client.base_url)
        )
        return WatchTarget(client.base_url, TargetKind.ENGINE, (engine,))
    finally:
        client.close()


async def _get(client: HttpClient, path: str, headers: Headers = ()) -> Reply:
    try:
        return await client.fetch("GET", path, headers=headers)
    except UpstreamError as error:
        if error.kind is FailureKind.PROTOCOL:
            raise
        raise EngineUnreachable(
            f"nothing answers at {client.base_url} ({error.kind})",
            hint="check the address; `phasewise status` shows what runs on this machine",
        ) from error


def _engines(reply: Reply) -> tuple[WatchedEngine, ...]:
    return tuple(
        WatchedEngine(worker["name"], worker["url"], worker.get("steps_url"), worker.get("model"))
        for worker in orjson.loads(reply.body)["workers"]
    )
