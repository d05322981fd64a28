"""Identifies an address: a phasewise gateway with its engines, or a single engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.benchmark.target import WORKERS_PATH
from phasewise.clients.http_client import Headers, HttpClient, Reply, Timeouts, no_answer
from phasewise.clients.processes import loopback_port
from phasewise.clients.step_feed import default_steps_url
from phasewise.core.errors import ConfigError, EngineUnreachable, FailureKind, UpstreamError
from phasewise.core.units import long_duration
from phasewise.diagnosis.observed.observation import TargetKind, WatchedEngine
from phasewise.engines.known import ENGINES, engine_of

QUICK = Timeouts(connect_s=3.0, head_s=15.0, idle_s=15.0)
FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """An address, its kind, and the engines behind it."""

    url: str
    kind: TargetKind
    engines: tuple[WatchedEngine, ...]


def admin_headers(admin_key: str | None) -> Headers:
    return ((b"authorization", b"Bearer " + admin_key.encode()),) if admin_key else ()


def rejected_admin(url: str, reply: Reply, admin_key: str | None) -> ConfigError:
    """The error for an admin request with this key, or without one, that a gateway answered 401 or 403."""
    if reply.status == FORBIDDEN and (said := _message_in(reply)):
        what, _, hint = said.partition(". hint: ")
        return ConfigError(f"{url} rejects admin requests: {what}", hint=hint or None)
    if admin_key:
        return ConfigError(
            f"{url} requires its admin key and does not know this one",
            hint="set PHASEWISE_ADMIN_KEY to the key whose sha256 is its gateway.admin_key_sha256",
        )
    return ConfigError(f"{url} requires its admin key", hint="set PHASEWISE_ADMIN_KEY")


def _message_in(reply: Reply) -> str:
    """What a gateway says in an error; empty if another server answered."""
    try:
        return str(orjson.loads(reply.body)["error"]["message"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return ""


async def identify(url: str, admin_key: str | None, steps_url: str | None = None) -> WatchTarget:
    """Identify the server at an address."""
    client = HttpClient(url, QUICK)
    try:
        reply = await _get(client, WORKERS_PATH, admin_headers(admin_key))
        if reply.status == 200:
            return WatchTarget(client.base_url, TargetKind.GATEWAY, engines_in(reply))
        if reply.status in {401, FORBIDDEN}:
            raise rejected_admin(client.base_url, reply, admin_key)
        metrics = await _get(client, "/metrics")
        kind = engine_of(metrics.body, metrics.headers)
        if kind is None or (metrics.status != 200 and kind.LISTING_PATH is None):
            titles = " or ".join(engine.TITLE for engine in ENGINES)
            raise ConfigError(
                f"{client.base_url} is neither a phasewise gateway nor an engine ({titles})",
                hint="give the address of the engine's API without /v1",
            )
        steps_url = steps_url or default_steps_url(client.base_url)
        engine = WatchedEngine(client.base_url, client.base_url, steps_url, kind=kind.TITLE)
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
            no_answer(client.base_url, error),
            hint="check the address; `phasewise status` shows what runs on this machine",
        ) from error


async def out_of_service(client: HttpClient, admin_key: str | None) -> dict[str, str]:
    """The workers that a gateway does not use as usual, and why; empty if it does not say."""
    try:
        reply = await client.fetch("GET", WORKERS_PATH, headers=admin_headers(admin_key))
    except UpstreamError:
        return {}
    workers = orjson.loads(reply.body)["workers"] if reply.status == 200 else []
    found = {worker["name"]: _why_out(worker, time.time()) for worker in workers}
    return {name: why for name, why in found.items() if why}


def _why_out(worker: dict[str, Any], now_s: float) -> str:
    if worker["health"] == "up":
        return "failing most requests, so its circuit is open" if worker.get("circuit_open") else ""
    since_s = worker.get("since_unix_s")
    lasting = "" if since_s is None else f" for {long_duration(now_s - since_s)}"
    note = f" ({worker['note']})" if worker["note"] else ""
    return f"{worker['health']}{lasting}{note}"


def engines_in(reply: Reply) -> tuple[WatchedEngine, ...]:
    return tuple(
        WatchedEngine(worker["name"], worker["url"], _steps_url(worker), worker.get("model"))
        for worker in orjson.loads(reply.body)["workers"]
    )


def _steps_url(worker: dict[str, Any]) -> str | None:
    """Where its step recorder listens; on this machine at the usual port if the gateway's file is silent."""
    if (named := worker.get("steps_url")) or loopback_port(worker["url"]) is None:
        return str(named) if named else None
    return default_steps_url(worker["url"])
