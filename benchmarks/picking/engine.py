"""A stand-in engine that notes what reaches it, and fails as its prompt says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.raw_server import raw_server

CHUNK_S = 0.05
OK = b"HTTP/1.1 200 OK\r\ncontent-type: "
Headers = dict[str, str]


@dataclass(slots=True)
class StandIn:
    """One engine. `seen` holds the headers and the body of each request that it got."""

    port: int = 0
    seen: list[tuple[Headers, bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """As Envoy knows it."""
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while await self._answer_one(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): given for name, _, given in (line.partition(": ") for line in lines)}
        if first.startswith("GET"):
            writer.write(OK + b"text/plain\r\ncontent-length: 0\r\n\r\n")
            return True
        body = await _body(reader, headers)
        self.seen.append((headers, body))
        asked = json.loads(body)
        prompt = asked["messages"][-1]["content"]
        if prompt.startswith("reset"):
            return False
        if prompt.startswith("500"):
            writer.write(b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n")
        elif asked.get("stream"):
            await self._stream(writer, asked.get("max_tokens", 3), trailers=prompt.startswith("trailers"))
        else:
            content = json.dumps({"port": self.port, "bytes": len(body)}).encode()
            writer.write(OK + b"application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))
        return True

    async def _stream(self, writer: asyncio.StreamWriter, chunks: int, *, trailers: bool) -> None:
        writer.write(OK + b"text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(chunks):
            writer.write(b"7\r\ndata: x\r\n")
            await writer.drain()
            await asyncio.sleep(CHUNK_S)
        writer.write(b"0\r\n" + b"x-usage: 3\r\n" * trailers + b"\r\n")


async def _body(reader: asyncio.StreamReader, headers: Headers) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return body


@asynccontextmanager
async def stand_ins(count: int) -> AsyncIterator[list[StandIn]]:
    """So many engines, in this event loop."""
    engines = [StandIn() for _ in range(count)]
    async with AsyncExitStack() as stack:
        for engine in engines:
            engine.port = await stack.enter_async_context(raw_server(engine.serve))
        yield engines
