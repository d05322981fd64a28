"""The messages of one request on their way from Envoy, read one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import Message

from phasewise.gateway.server.client import ClientLeft, Grow, too_large


class MessageStream:
    """Reads messages until Envoy closes the stream, or `end` is called.

    `has_trailers` says of a request whose body was read whether trailers follow it.
    """

    def __init__(self, incoming: AsyncIterator[Message]) -> None:
        self._incoming = aiter(incoming)
        self._coming: asyncio.Task[Message | None] | None = None
        self.ended = False
        self.has_trailers = False

    def coming(self) -> asyncio.Task[Message | None]:
        """The next message, which `next` returns; None at the end."""
        if self._coming is None:
            self._coming = asyncio.create_task(self._read())
        return self._coming

    async def next(self) -> Message | None:
        """The next message; None at the end."""
        coming = self.coming()
        try:
            return await coming
        except asyncio.CancelledError:
            if self.ended and coming.cancelled():
                return None
            raise
        finally:
            self._coming = None

    async def read_body(self, limit_bytes: int, grow: Grow | None = None) -> bytes:
        """The rest of the request. `grow` is called with the size of each part before it is kept."""
        parts: list[bytes] = []
        size = 0
        while (message := await self.next()) is not None:
            if message.HasField("request_trailers"):
                self.has_trailers = True
                return b"".join(parts)
            part = message.request_body
            size += len(part.body)
            if size > limit_bytes:
                raise too_large(limit_bytes)
            if grow is not None:
                await grow(len(part.body))
            parts.append(part.body)
            if part.end_of_stream:
                return b"".join(parts)
        raise ClientLeft

    def end(self) -> None:
        """Read no more: whoever waits for a message gets the end of the stream."""
        self.ended = True
        if self._coming is not None:
            self._coming.cancel()

    async def _read(self) -> Message | None:
        return None if self.ended else await anext(self._incoming, None)
