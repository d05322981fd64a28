"""A server of plain connections in the test's event loop, which leaves none of them open."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def raw_server(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port at which `handler` has each connection, until the block is left: then all are aborted."""
    writers: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []
    over = False

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One that was accepted while the server closed comes here too late to be served.
        if over:
            writer.transport.abort()
            return
        writers.append(writer)
        tasks.append(asyncio.ensure_future(handler(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over = True
        server.close()
        for writer in writers:
            writer.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # the transports' last callbacks
