"""Passes a worker's reply on to the client: a stream as it comes, a plain reply or a refusal as a whole."""

from __future__ import annotations

import time

from phasewise.adapters.http_client import FETCH_LIMIT_BYTES, StreamedReply
from phasewise.gateway.answer import Answer, read_plain_answer
from phasewise.gateway.asgi import WAITED_S, Headers
from phasewise.gateway.call import SERVED, Call, Ending
from phasewise.gateway.streaming import StreamRelay
from phasewise.model.timeline import Outcome

ENGINE_REFUSED = "engine_4xx"
"""The reason on the timeline of a request that the engine itself found fault with."""


async def relay_stream(reply: StreamedReply, head: Headers, call: Call) -> Ending:
    """Send each part of a stream on when it comes."""
    client, send = call.client, call.client.send
    client.streaming = True
    relay = StreamRelay(Answer(), hide_usage=call.hide_usage)
    call.timeline.note_answer(relay.answer)
    while data := await reply.read():
        at_s = time.monotonic()
        if out := relay.feed(data, at_s):
            if not client.started:
                await client.start(200, head)
                at_s = time.monotonic()
            # As client.send_part, without one more coroutine for every chunk to pass through.
            client.sending_since_s = at_s
            await send({"type": "http.response.body", "body": out, "more_body": True})
            if (waited_s := time.monotonic() - at_s) > WAITED_S:
                client.blocked_s += waited_s
            client.sending_since_s = None
    last = relay.close()
    if not client.started:
        await client.start(200, head)
    await client.finish(last)
    if relay.engine_error is not None:
        return Ending(Outcome.FAILED, "engine_error")
    return SERVED


async def relay_plain(reply: StreamedReply, head: Headers, call: Call) -> Ending:
    """Send a whole reply on."""
    body = await reply.read_all(FETCH_LIMIT_BYTES)
    await call.client.respond(200, head, body)
    # Read when the client already has it: nobody waits for our notes.
    call.timeline.note_answer(read_plain_answer(body))
    return SERVED


async def relay_refusal(reply: StreamedReply, head: Headers, call: Call) -> Ending:
    """Send the engine's own refusal on."""
    body = await reply.read_all(FETCH_LIMIT_BYTES)
    await call.client.respond(reply.status, head, body)
    return Ending(Outcome.REJECTED, ENGINE_REFUSED)
