"""Sends cases to a gateway, some at once, and hands what came back to the tally."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import FailureKind, UpstreamError

from .cases import Case, RawCase
from .judge import Tally

AT_ONCE = 32
HANG_S = 30.0
DRIBBLE_EVERY_S = 0.05
CLOSES_WITHIN_S = 10.0

_Any = TypeVar("_Any", Case, RawCase)


PATIENCE = Timeouts(connect_s=HANG_S, head_s=HANG_S, idle_s=HANG_S)


async def send_all(url: str, cases: Sequence[Case], tally: Tally) -> None:
    """Send well-framed requests over connections that are kept alive."""
    client = HttpClient(url, PATIENCE)
    try:
        await _some_at_once(cases, lambda case: send_one(client, case, tally))
    finally:
        client.close()


async def send_one(client: HttpClient, case: Case, tally: Tally) -> None:
    """Send a well-framed request."""
    if case.method == "HEAD":
        # Our client would wait for the body that the length speaks of.
        await send_one_raw(client.base_url, _as_bytes(case), tally)
        return
    try:
        async with asyncio.timeout(2 * HANG_S):
            reply = await client.fetch(case.method, case.path, headers=case.headers, body=case.body)
    except TimeoutError:
        tally.hung(case)
    except UpstreamError as error:
        if error.kind is FailureKind.TIMED_OUT:
            tally.hung(case)
        else:
            tally.not_as_expected[f"{case.kind}: {error.kind}"] += 1
    else:
        tally.answered(case, reply.status, reply.body)


def _as_bytes(case: Case) -> RawCase:
    headers = (*case.headers, (b"host", b"x"), (b"content-length", b"%d" % len(case.body)))
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    head = f"{case.method} {case.path} HTTP/1.1\r\n".encode() + lines + b"\r\n"
    return RawCase(case.kind, head + case.body)


async def send_raw(url: str, cases: Sequence[RawCase], tally: Tally) -> None:
    """Send bytes, each over a connection of its own."""
    await _some_at_once(cases, lambda case: send_one_raw(url, case, tally))


async def send_one_raw(url: str, case: RawCase, tally: Tally) -> None:
    """Send bytes over a connection of their own."""
    address = urlsplit(url)
    try:
        # Whoever sends byte by byte needs time for that too.
        async with asyncio.timeout(3 * HANG_S if case.slowly else HANG_S):
            data = await _exchanged(str(address.hostname), int(address.port or 0), case)
    except TimeoutError:
        tally.hung(case)
        return
    status = int(data[9:12]) if data[:9] == b"HTTP/1.1 " else 0
    tally.answered_raw(case, status, data.count(b"HTTP/1.1 "), data.partition(b"\r\n\r\n")[2])


async def _exchanged(host: str, port: int, case: RawCase) -> bytes:
    """What comes back: everything up to the close if a rejection is due, else the first answer's head."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if case.slowly:
            return await _dribbled(reader, writer, case.data)
        with contextlib.suppress(ConnectionError):
            writer.write(case.data)
            await writer.drain()
            if case.half_closes:
                writer.write_eof()
        with contextlib.suppress(ConnectionError):
            head = await _head(reader)
            # The code of an error is in its body.
            return head + await _rest(reader) if case.accepted or head[9:10] == b"5" else head
        return b""
    finally:
        writer.transport.abort()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """What else comes until the connection closes; it may stay open after what was well framed."""
    rest = bytearray()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSES_WITHIN_S):
            while piece := await reader.read(65_536):
                rest += piece
    return bytes(rest)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial


async def _dribbled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    reading = asyncio.create_task(reader.read(-1))
    for place in range(len(data)):
        if reading.done():
            break
        writer.write(data[place : place + 1])
        await asyncio.sleep(DRIBBLE_EVERY_S)
    return await reading


async def _some_at_once(cases: Sequence[_Any], send: Callable[[_Any], Awaitable[None]]) -> None:
    waiting = iter(cases)

    async def go_on() -> None:
        for case in waiting:
            await send(case)

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
