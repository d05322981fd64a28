"""What a gateway's own records say of streams: how many engines each met, and whether it was taken up."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient

ADMIN_KEY = "benchmark"
ADMIN_KEY_SHA256 = hashlib.sha256(ADMIN_KEY.encode()).hexdigest()
ADMIN = [(b"authorization", b"Bearer " + ADMIN_KEY.encode())]
GIVE_UP_S = 300.0
NOT_THERE = ("cannot be reached", "went away before")
"""What the gateway notes of an attempt that met no engine."""


@dataclass(frozen=True)
class Attempts:
    """Engines that a request met (one that was not there does not count), and whether one took it up."""

    met: int
    resumed: bool


async def attempts_of(client: HttpClient, request_ids: Collection[str]) -> list[Attempts]:
    """Of each of these requests; a record is written a moment after its client has the answer."""
    wanted, found, after = set(request_ids) - {""}, [], "0"
    deadline_s = time.monotonic() + GIVE_UP_S
    while wanted:
        path = f"/phasewise/v1/requests?limit=2000&after={after}"
        reply = await client.fetch("GET", path, headers=ADMIN)
        for record in map(orjson.loads, reply.body.splitlines()):
            if record["id"] in wanted:
                wanted.discard(record["id"])
                found.append(_attempts(record))
        after = dict(reply.headers)[b"x-phasewise-next"].decode()
        if wanted and time.monotonic() > deadline_s:
            raise SystemExit(f"the gateway kept no record of {len(wanted)} requests")
        await asyncio.sleep(0.05)
    return found


def _attempts(record: dict[str, Any]) -> Attempts:
    attempts = record["attempts"]
    met = [it for it in attempts if not any(gone in (it.get("note") or "") for gone in NOT_THERE)]
    return Attempts(len(met), any(it["kind"] == "resumed" for it in attempts))


async def wait_for_workers(
    url: str, count: int, other_than: Collection[tuple[str, str]] = ()
) -> set[tuple[str, str]]:
    """The names and incarnations of the workers that are up, once so many are, and none of `other_than`."""
    client = HttpClient(url)
    deadline_s = time.monotonic() + GIVE_UP_S
    try:
        while True:
            reply = await client.fetch("GET", "/phasewise/v1/workers", headers=ADMIN)
            workers = orjson.loads(reply.body)["workers"]
            up = {(it["name"], it["incarnation"]) for it in workers if it["health"] == "up"}
            if len(up) >= count and up.isdisjoint(other_than):
                return up
            if time.monotonic() > deadline_s:
                raise SystemExit(f"not all of {count} workers came up")
            await asyncio.sleep(0.2)
    finally:
        client.close()


async def serving_worker(client: HttpClient, request_id: str) -> str | None:
    """The worker that has a request which is under way."""
    reply = await client.fetch("GET", "/phasewise/v1/requests/open", headers=ADMIN)
    for record in map(orjson.loads, reply.body.splitlines()):
        if record["id"] == request_id and record["attempts"]:
            worker: str = record["attempts"][-1]["worker"][0]
            return worker
    return None
