"""A TCP proxy that is slow to pass replies on: everything comes, in order, and comes late.

    python benchmarks/planted/proxy.py LISTEN:TARGET:DELAY_MS [LISTEN:TARGET:DELAY_MS ...]

It runs until it is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from functools import partial

Piece = tuple[float, bytes]


async def main() -> None:
    """Serve every route given on the command line."""
    async with contextlib.AsyncExitStack() as stack:
        for route in sys.argv[1:]:
            listen, target, delay_ms = map(int, route.split(":"))
            serve = partial(relay, target=target, delay_s=delay_ms / 1000)
            await stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", listen))
        await asyncio.Event().wait()


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int, delay_s: float
) -> None:
    """Join a client with the target; what the target says is held back."""
    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target)
    await asyncio.gather(pass_on(reader, up_writer, 0.0), pass_on(up_reader, writer, delay_s))


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Hand each piece on as long after it came as the delay says; pieces keep their distances."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[Piece] = asyncio.Queue()

    async def take() -> None:
        data = b"x"
        while data:
            try:
                data = await reader.read(65536)
            except ConnectionError:
                data = b""
            pieces.put_nowait((loop.time() + delay_s, data))

    taking = asyncio.create_task(take())
    with contextlib.suppress(ConnectionError):
        while (piece := await pieces.get())[1]:
            await asyncio.sleep(piece[0] - loop.time())
            writer.write(piece[1])
            await writer.drain()
    taking.cancel()
    writer.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
