"""A picker that reads messages and answers them, always with the same engine: what gRPC itself costs.

python bare.py LISTEN ENGINE
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace

from google.protobuf.message import Message

from phasewise.gateway.picker import messages
from phasewise.gateway.picker.server import PickerServer


async def process(incoming: AsyncIterator[Message], _context: object) -> AsyncIterator[Message]:
    """Answer one request's messages."""
    body = b""
    async for message in incoming:
        if message.HasField("response_headers"):
            yield messages.passed_on(message)
        elif message.HasField("request_body"):
            body += message.request_body.body
            if message.request_body.end_of_stream:
                for answer in messages.placed(sys.argv[2], body, trailers=False):
                    yield answer


async def main() -> None:
    """Serve until the process is ended."""
    server = PickerServer(SimpleNamespace(process=process), sys.argv[1])  # type: ignore[arg-type]
    server.bind()
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
