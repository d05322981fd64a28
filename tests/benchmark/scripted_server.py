"""A server that answers as it is told to: for what neither a real nor a fake engine would say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson

from tests.raw_server import raw_server

HEAD = b"HTTP/1.1 %d X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HANG = b"hang"
CLOSE = b"close"


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: dict


Answer = tuple[int, list[bytes]]


def event(**fields: object) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"


def content(text: str = "a", finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return event(id="chatcmpl-1", choices=[choice])


@asynccontextmanager
async def scripted_server(answer: Callable[[Asked], Answer]) -> AsyncIterator[str]:
    """Serve `answer` at the yielded URL; pieces `HANG` and `CLOSE` do what they say."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await _answer(head, answer, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with raw_server(serve) as port:
        yield f"http://127.0.0.1:{port}"


async def _answer(
    head: bytes,
    answer: Callable[[Asked], Answer],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    first, *lines = head.decode().split("\r\n")
    path, headers = first.split(" ")[1], dict(line.split(": ", 1) for line in lines if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    status, pieces = answer(Asked(path, headers, orjson.loads(body) if body else {}))
    writer.write(HEAD % status)
    for piece in pieces:
        if piece is HANG:
            await asyncio.sleep(60)
        if piece is CLOSE:
            raise ConnectionError
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(0.002)
    writer.write(b"0\r\n\r\n")
