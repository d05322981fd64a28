"""Relays a worker's reply to the client: a stream as it comes, a plain reply or a rejection as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from phasewise.clients.http_client import FETCH_LIMIT_BYTES, StreamedReply
from phasewise.clients.sse import DONE
from phasewise.core.errors import UpstreamError
from phasewise.core.timeline import Outcome, Timeline
from phasewise.gateway.http_errors import anthropic_rejection
from phasewise.gateway.kv_transfer.tickets import without_kv_params
from phasewise.gateway.records.server_timing import SERVER_TIMING, server_timing, timing_comment
from phasewise.gateway.server.client import Client, Headers
from phasewise.gateway.upstream.call import SERVED, Call, Ending
from phasewise.gateway.upstream.response import Answer, StreamRelay, read_plain_answer

# --- Joins a worker's connection to a client's: each part of a stream is written as it comes.
#
# No task runs for a chunk. A client that takes no data pauses the worker.


class Relay(Protocol):
    """Decides what passes from worker to client, as StreamRelay does."""

    def feed(self, data: bytes, at_s: float) -> bytes:
        """What may be sent to the client now that `data` has come."""

    def takes_usual(self, data: bytes, start: int, end: int, at_s: float) -> bool:
        """Whether these bytes, from `start` to `end`, may pass as they came."""


class Splice:
    """One stream under way. The answer's head is written before the first bytes that pass."""

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

    def __init__(self, reply: StreamedReply, relay: Relay, client: Client, head: Headers) -> None:
        direct = client.direct
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
        self._passes = client.started and direct.may_be_chunked
        """Whether the head was written and nothing waits, so that chunks may pass directly."""

    async def run(self) -> None:
        """Return when the reply has ended and all of it is written; raise if it broke off."""
        try:
            await self._reply.read_into(self)
        except UpstreamError:
            # What was fed to the relay counts as sent, and the answer may be resumed after it.
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
            # What the relay released is sent, even if the reply is broken after it.
            if released := b"".join(out):
                if self._waits or self._direct.paused:
                    self._hold(released, at_s)
                else:
                    self._write(released)

    def listen(self, listener: Callable[[], None]) -> None:
        """From now on, call `listener` when something has come, for the followers of this answer.

        A stream without followers has no such cost. A client that takes no data does not delay the followers:
        its data is held, which is never more than the answer.
        """
        takes_usual, feed = self._takes_usual, self._feed

        def takes_usual_and_notifies(data: bytes, start: int, end: int, at_s: float) -> bool:
            taken = takes_usual(data, start, end, at_s)
            if taken:
                listener()
            return taken

        def feed_and_notify(data: bytes, at_s: float) -> bytes:
            try:
                return feed(data, at_s)
            finally:
                listener()

        self._takes_usual, self._feed = takes_usual_and_notifies, feed_and_notify
        self._reply.resume()

    def _hold(self, out: bytes, at_s: float) -> None:
        self._held += out
        if not self._waits:
            self._waits, self._passes = True, False
            self._client.sending_since_s = at_s
            self._client.on_writable = self._go_on
        if not self._client.is_followed:
            self._reply.pause()

    async def _write_held(self) -> None:
        while self._waits:
            await self._client.wait_until_writable()

    def _go_on(self) -> None:
        held, self._held, self._waits = bytes(self._held), bytearray(), False
        self._client.on_writable = None
        self._client.waited()
        self._write(held)
        self._reply.resume()

    def _write(self, out: bytes) -> None:
        if not self._client.started:
            self._client.started = True
            self._direct.start(200, self._head)
        self._passes = self._direct.may_be_chunked
        self._direct.write(out)


# --- A stream with a timing comment before `[DONE]`, for clients that ask for it.


class TimedRelay:
    """Wraps a relay; `timeline_at` returns the request's timeline at a time."""

    __slots__ = ("_relay", "_timeline_at", "takes_usual")

    def __init__(self, relay: Relay, timeline_at: Callable[[float], Timeline]) -> None:
        self._relay = relay
        self._timeline_at = timeline_at
        # An ordinary chunk of content is never the end.
        self.takes_usual = relay.takes_usual

    def feed(self, data: bytes, at_s: float) -> bytes:
        """What may be sent to the client now that `data` has come."""
        out = self._relay.feed(data, at_s)
        at = out.rfind(DONE)
        # Only whole events pass, so the end begins a line; within a chunk's text line ends are escaped.
        if at == 0 or (at > 0 and out[at - 1 : at] == b"\n"):
            return out[:at] + timing_comment(self._timeline_at(at_s)) + out[at:]
        return out


ENGINE_REJECTED = "engine_4xx"
"""The timeline's reason for a request that the engine rejected."""

_PUT_IN = (b"cache_salt", b"kv_transfer_params")
"""What the gateway puts into bodies, and an engine's error may repeat."""
_REJECTED = (
    b'{"error":{"message":"the engine rejected the request","type":"BadRequestError",'
    b'"param":null,"code":400}}'
)

Begun = Callable[[], None] | None
"""Called once, at the first content; for a plain reply, when all of it has come."""


async def relay_stream(
    reply: StreamedReply, head: Headers, call: Call, begun: Begun, relay: StreamRelay | None = None
) -> Ending:
    """Send each part of a stream as it comes."""
    client = call.client
    client.streaming = True
    relay = relay or StreamRelay(Answer(), hide_usage=call.hide_usage, typed=call.typed)
    relay.on_content = begun
    call.timeline.note_answer(relay.answer)
    passing = TimedRelay(relay, call.timeline.so_far) if call.wants_timing else relay
    try:
        splice = Splice(reply, passing, client, head)
        if call.leads is not None:
            call.leads.carry(relay.answer, splice.listen)
        await splice.run()
    except UpstreamError:
        # If the worker died after the answer's end, nothing is missing.
        if not relay.complete:
            raise
    last = relay.close()
    call.note_whole(relay.answer)
    if not client.started:
        await client.start(200, head)
    await client.finish(last)
    return SERVED


async def relay_plain(reply: StreamedReply, head: Headers, call: Call, begun: Begun) -> Ending:
    """Send a whole reply."""
    body = without_kv_params(await reply.read_all(FETCH_LIMIT_BYTES))
    answer = read_plain_answer(body, with_text=call.cache is not None)
    call.timeline.note_answer(answer)
    if call.leads is not None:
        call.leads.carry(answer)
    call.note_whole(answer)
    if begun is not None:
        begun()
    timing = (SERVER_TIMING, server_timing(*call.timeline.parts_so_far(time.monotonic())))
    await call.client.respond(200, [*head, timing], body)
    return SERVED


async def relay_rejection(reply: StreamedReply, head: Headers, call: Call) -> Ending:
    """Send the engine's rejection, unless it repeats fields that the gateway added to the request."""
    body = await reply.read_all(FETCH_LIMIT_BYTES)
    if any(field in body for field in _PUT_IN):
        body = _REJECTED
    if call.client.is_anthropic:
        body = anthropic_rejection(reply.status, body)
    await call.client.respond(reply.status, head, body)
    return Ending(Outcome.REJECTED, ENGINE_REJECTED, f"HTTP {reply.status}")
