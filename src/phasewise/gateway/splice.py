"""Joins a worker's connection to a client's: what comes of a stream is written in the moment it comes.

No task runs for a chunk. A client that takes nothing lets the worker wait. What may be passed on is the
relay's to say, how the request ends its caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from phasewise.adapters.http_client import StreamedReply
from phasewise.errors import UpstreamError
from phasewise.gateway.asgi import Client, Direct, Headers


class Relay(Protocol):
    """What stands between the two, as StreamRelay does."""

    def feed(self, data: bytes, at_s: float) -> bytes:
        """What may be sent to the client now that `data` has come."""

    def takes_usual(self, data: bytes, start: int, end: int, at_s: float) -> bool:
        """Whether these bytes, from `start` to `end`, may pass as they came."""


class Splice:
    """One stream on its way. The first bytes that may pass are led by the answer's head."""

    __slots__ = (
        "_client",
        "_direct",
        "_feed",
        "_head",
        "_held",
        "_passes",
        "_reply",
        "_takes_usual",
        "_waits",
        "pass_on",
    )

    def __init__(
        self, reply: StreamedReply, relay: Relay, client: Client, direct: Direct, head: Headers
    ) -> None:
        self._reply = reply
        self._feed = relay.feed
        self._takes_usual = relay.takes_usual
        # As the reader of the reply: write chunks that may pass.
        self.pass_on = direct.write_chunks
        self._client = client
        self._direct = direct
        self._head = head
        self._held = bytearray()
        self._waits = False
        self._passes = client.started
        """Whether the head was written and nothing waits, so that what comes may go right through."""

    async def run(self) -> None:
        """Return when the reply has ended and all that came of it is written; fail when it broke."""
        try:
            await self._reply.read_into(self)
        except UpstreamError:
            # What was fed to the relay counts as the client's, and an answer may be taken up after it.
            await self._write_held()
            raise
        await self._write_held()

    def takes_chunk(self, data: bytes, start: int, end: int) -> bool:
        """As the reader of the reply: whether a chunk may pass as it came."""
        return self._passes and not self._direct.paused and self._takes_usual(data, start, end, monotonic())

    def take(self, parts: Sequence[bytes]) -> None:
        """As the reader of the reply: write what may be written of all else."""
        at_s = monotonic()
        out: list[bytes] = []
        try:
            for part in parts:
                out.append(self._feed(part, at_s))
        finally:
            # What the relay let pass has passed, even if the reply turns out to be broken after it.
            if released := b"".join(out):
                if self._waits or self._direct.paused:
                    self._hold(released, at_s)
                else:
                    self._write(released)

    def tell(self, listener: Callable[[], None]) -> None:
        """From now on, call `listener` when something has come: others wait for it as well.

        Nothing of this is in a stream's way before. Who waits is not held up by a client that takes nothing:
        what comes for that one is held, which is never more than the answer.
        """
        takes_usual, feed = self._takes_usual, self._feed

        def takes_usual_and_tells(data: bytes, start: int, end: int, at_s: float) -> bool:
            taken = takes_usual(data, start, end, at_s)
            if taken:
                listener()
            return taken

        def feed_and_tell(data: bytes, at_s: float) -> bytes:
            try:
                return feed(data, at_s)
            finally:
                listener()

        self._takes_usual, self._feed = takes_usual_and_tells, feed_and_tell
        self._reply.resume()

    def _hold(self, out: bytes, at_s: float) -> None:
        self._held += out
        if not self._waits:
            self._waits, self._passes = True, False
            self._client.sending_since_s = at_s
            self._client.on_room = self._go_on
        if not self._client.is_followed:
            self._reply.pause()

    async def _write_held(self) -> None:
        while self._waits:
            await self._client.wait_for_room()

    def _go_on(self) -> None:
        held, self._held, self._waits = bytes(self._held), bytearray(), False
        self._client.on_room = None
        self._client.waited()
        self._write(held)
        self._reply.resume()

    def _write(self, out: bytes) -> None:
        if not self._client.started:
            self._client.started = True
            self._direct.start(200, self._head)
        self._passes = True
        self._direct.write(out)
