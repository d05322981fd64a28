"""Finds out what stands at an address: a phasewise gateway with its engines, or an engine by itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import orjson

from phasewise.adapters.http_client import Headers, HttpClient, Reply, Timeouts
from phasewise.adapters.step_feed import default_steps_url
from phasewise.errors import ConfigError, EngineUnreachable, FailureKind, UpstreamError

QUICK = Timeouts(connect_s=3.0, head_s=15.0, idle_s=15.0)


class TargetKind(StrEnum):
    """What stands at an address."""

    GATEWAY = "gateway"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class WatchedEngine:
    """An engine to be watched; `steps_url` is where its recorder may be, `model` what a gateway calls it."""

    name: str
    url: str
    steps_url: str | None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """An address, what stands there, and the engines behind it."""

    url: str
    kind: TargetKind
    engines: tuple[WatchedEngine, ...]


def admin_headers(admin_key: str | None) -> Headers:
    """How we identify ourselves to a gateway's admin routes."""
    return ((b"authorization", b"Bearer " + admin_key.encode()),) if admin_key else ()


async def identify(url: str, admin_key: str | None, steps_url: str | None = None) -> WatchTarget:
    """Ask the address what it is."""
    client = HttpClient(url, QUICK)
    try:
        reply = await _get(client, "/phasewise/v1/workers", admin_headers(admin_key))
        if reply.status == 200:
            return WatchTarget(client.base_url, TargetKind.GATEWAY, _engines(reply))
        if reply.status in {401, 403}:
            raise ConfigError(
                f"{client.base_url} is a phasewise gateway and wants its admin key",
                hint="set PHASEWISE_ADMIN_KEY, or diagnose an engine's own port",
            )
        metrics = await _get(client, "/metrics")
        if metrics.status != 200 or b"vllm:" not in metrics.body:
            raise ConfigError(
                f"{client.base_url} is neither a phasewise gateway nor a vLLM engine",
                hint="give the address where vLLM serves /metrics, without /v1",
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
            hint="check the address; `phasewise status` tells what runs on this machine",
        ) from error


def _engines(reply: Reply) -> tuple[WatchedEngine, ...]:
    return tuple(
        WatchedEngine(worker["name"], worker["url"], worker.get("steps_url"), worker.get("model"))
        for worker in orjson.loads(reply.body)["workers"]
    )
