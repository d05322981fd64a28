"""A socket that greets as NIXL's side channel does, for fake engines, whose own are only numbers."""

import asyncio
import contextlib


async def _greet(reader, writer):
    writer.write(b"\xff")
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def greeting_port():
    """A port at which somebody greets in the meantime; a fake engine takes it as its side_port."""
    server = await asyncio.start_server(_greet, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        # Whoever asked has hung up; the tasks that answered end on the loop's next turns.
        await asyncio.sleep(0.05)
