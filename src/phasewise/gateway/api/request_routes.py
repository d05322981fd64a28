"""The routes of requests: those that have ended, those under way, and one with its parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import orjson

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.latency import TtftBreakdown, fitted, ttft_breakdown
from phasewise.core.timeline_record import from_record
from phasewise.gateway.http_errors import JSON
from phasewise.gateway.processes.records import AllRecords, answer_of, headers_of
from phasewise.gateway.records.timeline_store import MEASURES, FoundRequests
from phasewise.gateway.server.client import Client, Headers, Scope

NDJSON: Headers = ((b"content-type", b"application/x-ndjson"),)
DEFAULT_LIMIT = 100
MOST_LINES = 2_000
"""A longer page would block the event loop, and every stream with it, for milliseconds."""
LONGEST_ID = 100
"""Characters of an id that an error repeats; ids have fewer."""
PIECE_BYTES = 64 * 1024
DEFAULT_OPEN_LIMIT = 1_000


class RequestRoutes:
    """Answers admins for all processes, and other processes for this one alone."""

    def __init__(self, records: AllRecords) -> None:
        self._records = records

    def _records_for(self, scope: Scope) -> AllRecords:
        return self._records.alone if scope["is_local"] else self._records

    async def listed(self, scope: Scope, client: Client) -> None:
        """Those that have ended: the newest, the slowest, those with an id, or those after a cursor."""
        query, alone = query_of(scope), scope["is_local"]
        records, limit = self._records_for(scope), _limit(query, DEFAULT_LIMIT, alone=alone)
        if "slowest" in query:
            found = await _slowest(records, query, limit)
            await _send_found(client, found, [(b"x-phasewise-looked-at", b"%d" % found.of)], alone=alone)
            return
        if "id" in query:
            found = await records.matching(query["id"][-1], limit)
        else:
            found = await _page_asked(records, query, limit)
        await _send_found(client, found, headers_of(found), alone=alone)

    async def open(self, scope: Scope, client: Client) -> None:
        """Those under way."""
        alone = scope["is_local"]
        limit = _limit(query_of(scope), DEFAULT_OPEN_LIMIT, alone=alone)
        found = await self._records_for(scope).open(limit)
        await _send_found(client, found, [(b"x-phasewise-open", b"%d" % found.of)], alone=alone)

    async def one(self, scope: Scope, client: Client) -> None:
        """One that has ended, by any of its ids."""
        asked, alone = scope["path"].rpartition("/")[2], scope["is_local"]
        or_open = alone and "open" in query_of(scope)
        line = await self._records_for(scope).request(asked, or_open=or_open)
        if line is not None and alone:
            await client.respond(200, JSON, line)
            return
        if line is None:
            raise RequestRejected(
                RejectionKind.NOT_FOUND,
                f"the gateway has no record of request {asked[:LONGEST_ID]}",
                hint=f"it keeps the last {self._records.capacity:,} requests that have ended "
                "(gateway.keep_timelines), and none of a process that has ended",
            )
        record = orjson.loads(line)
        breakdown = ttft_breakdown(from_record(record))
        answer = {**record, "ttft": None if breakdown is None else _breakdown_ms(breakdown)}
        await client.respond(200, JSON, orjson.dumps(answer))


async def _send_found(client: Client, found: FoundRequests, headers: Headers, *, alone: bool) -> None:
    """To another process `alone` what this one has, with what is needed to put it together."""
    if alone:
        head, body = answer_of(found)
        await client.respond(200, [*NDJSON, *head], body)
    else:
        length = (b"content-length", b"%d" % sum(len(line) + 1 for line in found.texts))
        await client.start(200, [*NDJSON, length, (b"x-phasewise-now", b"%.6f" % time.time()), *headers])
        for piece in _pieces(found.texts):
            await client.send_part(piece)
            # A fast reader never makes us wait, but other streams must run too.
            await asyncio.sleep(0)
        await client.finish()


def _breakdown_ms(measured: TtftBreakdown) -> dict[str, Any]:
    breakdown = fitted(measured)
    return {
        "total_ms": round(breakdown.ttft_s * 1e3, 3),
        "parts": [
            {"part": entry.part, "source": entry.source, "ms": round(entry.seconds * 1e3, 3)}
            for entry in breakdown.parts
        ],
        "unexplained_ms": round(breakdown.unexplained_s * 1e3, 3),
    }


async def _slowest(records: AllRecords, query: dict[str, list[str]], limit: int) -> FoundRequests:
    measure = query["slowest"][-1]
    if measure not in MEASURES:
        raise RequestRejected(
            RejectionKind.BAD_REQUEST,
            "slowest is no known time",
            param="slowest",
            hint=f"accepted: {', '.join(MEASURES)}",
        )
    return await records.slowest(measure, limit, _tenant(query))


async def _page_asked(records: AllRecords, query: dict[str, list[str]], limit: int) -> FoundRequests:
    tenant = _tenant(query)
    if "after" not in query and "since_unix_s" not in query:
        return await records.newest(limit, tenant)
    if tenant is not None:
        raise RequestRejected(
            RejectionKind.BAD_REQUEST,
            "tenant cannot be combined with after or since_unix_s",
            param="tenant",
            hint="leave one of them out",
        )
    cursor = query.get("after", [""])[-1]
    return await records.after(cursor, limit, number_in(query, "since_unix_s", 0.0))


def _pieces(lines: list[bytes]) -> Iterator[bytes]:
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece += (line, b"\n")
        size += len(line) + 1
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def query_of(scope: Scope) -> dict[str, list[str]]:
    """The parameters after the path."""
    return parse_qs(scope["query_string"].decode("latin-1"))


def _tenant(query: dict[str, list[str]]) -> str | None:
    return query["tenant"][-1] if "tenant" in query else None


def _limit(query: dict[str, list[str]], default: int, *, alone: bool) -> int:
    limit = int(number_in(query, "limit", default))
    return limit if alone else min(limit, MOST_LINES)


def number_in(query: dict[str, list[str]], name: str, default: float) -> float:
    """A number of 0 or more; RequestRejected if it is something else."""
    try:
        value = float(query.get(name, [default])[-1])
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise RequestRejected(RejectionKind.BAD_REQUEST, f"{name} is not a number of 0 or more", param=name)
    return value
