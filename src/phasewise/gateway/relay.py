"""Passes a worker's reply on to the client: a stream as it comes, a plain reply or a refusal as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable

from phasewise.adapters.http_client import FETCH_LIMIT_BYTES, StreamedReply
from phasewise.errors import UpstreamError
from phasewise.gateway.answer import Answer, read_plain_answer
from phasewise.gateway.asgi import Headers
from phasewise.gateway.call import SERVED, Call, Ending
from phasewise.gateway.hand_over_bodies import without_kv_params
from phasewise.gateway.server_timing import SERVER_TIMING, server_timing
from phasewise.gateway.splice import Splice
from phasewise.gateway.streaming import StreamRelay
from phasewise.gateway.timed_relay import TimedRelay
from phasewise.model.timeline import Outcome

ENGINE_REFUSED = "engine_4xx"
"""The reason on the timeline of a request that the engine itself found fault with."""

_PUT_IN = (b"cache_salt", b"kv_transfer_params")
_REFUSED = (
    b'{"error":{"message":"the engine refused the request","type":"BadRequestError","param":null,"code":400}}'
)

Begun = Callable[[], None] | None
"""Called once, when the first content has come: of a plain reply, when all of it has."""


async def relay_stream(
    reply: StreamedReply, head: Headers, call: Call, begun: Begun, relay: StreamRelay | None = None
) -> Ending:
    """Send each part of a stream on when it comes."""
    client = call.client
    client.streaming = True
    relay = relay or StreamRelay(Answer(), hide_usage=call.hide_usage)
    relay.on_content = begun
    call.timeline.note_answer(relay.answer)
    passing = TimedRelay(relay, call.timeline.so_far) if call.wants_timing else relay
    if client.direct is None:
        raise RuntimeError("streams are relayed on connections that can be written to at once")
    try:
        splice = Splice(reply, passing, client, client.direct, head)
        if call.leads is not None:
            call.leads.carry(relay.answer, splice.tell)
        await splice.run()
    except UpstreamError:
        # A worker that died between the answer's end and the reply's has left nothing to go on with.
        if not relay.complete:
            raise
    last = relay.close()
    call.note_whole(relay.answer)
    if not client.started:
        await client.start(200, head)
    await client.finish(last)
    return SERVED


async def relay_plain(reply: StreamedReply, head: Headers, call: Call, begun: Begun) -> Ending:
    """Send a whole reply on."""
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


async def relay_refusal(reply: StreamedReply, head: Headers, call: Call) -> Ending:
    """Send the engine's own refusal on, unless it repeats what the gateway put into the request."""
    body = await reply.read_all(FETCH_LIMIT_BYTES)
    if any(field in body for field in _PUT_IN):
        body = _REFUSED
    await call.client.respond(reply.status, head, body)
    return Ending(Outcome.REJECTED, ENGINE_REFUSED)
