"""A socket that greets as NIXL's side channel does, for fake engines, whose own are only numbers."""

import contextlib

from tests.raw_server import raw_server


async def _greet(reader, writer):
    writer.write(b"\xff")
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def greeting_port():
    """A port at which somebody greets in the meantime; a fake engine takes it as its side_port."""
    async with raw_server(_greet) as port:
        yield port
