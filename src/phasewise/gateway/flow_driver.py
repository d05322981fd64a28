"""Performs the steps of a request's flow over HTTP and sends the flow what came of them.

Where a request runs, and whether it runs again, is the flow's to decide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from phasewise.adapters.http_client import FETCH_LIMIT_BYTES, HttpClient, StreamedReply
from phasewise.errors import FailureKind, UpstreamError
from phasewise.gateway.answer import Answer, read_plain_answer
from phasewise.gateway.asgi import WAITED_S, Client, Headers
from phasewise.gateway.http_errors import send_error, stream_error_event
from phasewise.gateway.streaming import StreamRelay
from phasewise.gateway.timeline_builder import TimelineBuilder, attempt_outcome
from phasewise.model.decision import RejectReason
from phasewise.model.timeline import Outcome
from phasewise.request_flow import Cancelled, Failed, Generate, Reject, RequestFlow, Result, Succeeded

ENGINE_REFUSED = "engine_4xx"
"""The reason on the timeline of a request that the engine itself found fault with."""
_NEVER_STARTED = frozenset({RejectReason.NO_WORKER_FOR_MODEL, RejectReason.NO_HEALTHY_WORKER})


@dataclass(slots=True)
class Call:
    """One request while it is being served. `reply_headers` stand in every answer to it."""

    path: str
    body: bytes
    request_id: str
    hide_usage: bool
    client: Client
    timeline: TimelineBuilder
    reply_headers: Headers


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended, for its timeline."""

    outcome: Outcome
    reason: str | None = None


_SERVED = Ending(Outcome.SUCCEEDED)
_CLIENT_LEFT = Ending(Outcome.CANCELLED, "client_left")
_CLIENT_STALLED = Ending(Outcome.CANCELLED, "client_stalled")


class FlowDriver:
    """Drives flows against workers, one client per worker."""

    def __init__(self, workers: Mapping[str, HttpClient]) -> None:
        self._workers = workers

    async def drive(self, flow: RequestFlow, call: Call) -> Ending:
        """Perform the flow's steps until the request has ended and its client has been answered."""
        try:
            step = next(flow)
            while isinstance(step, Generate):
                result, ending = await self._generate(step, call)
                try:
                    step = flow.send(result)
                except StopIteration:
                    return ending
            return await _reject(step, call)
        finally:
            # Whatever interrupts a flow, its booking is released.
            flow.close()

    async def _generate(self, step: Generate, call: Call) -> tuple[Result, Ending]:
        timeline = call.timeline
        timeline.begin_attempt(step.worker.ref, time.monotonic())
        note: str | None = None
        try:
            ending = await self._exchange(step, call)
            result: Result = Succeeded(time.monotonic())
            if call.client.stalled:
                # Only the very end of the answer was left, so that nothing had to be interrupted.
                result, ending = Cancelled(result.at_s), _CLIENT_STALLED
            outcome = ending.outcome
        except UpstreamError as error:
            content_sent = call.client.started
            if content_sent:
                await call.client.finish(stream_error_event(error.kind))
            result = Failed(time.monotonic(), error.kind, content_sent)
            outcome, note = attempt_outcome(error.kind), error.message
            ending = Ending(outcome, error.kind)
        except asyncio.CancelledError:
            if not call.client.gone:
                timeline.end_attempt(Outcome.CANCELLED, time.monotonic(), "the gateway was stopped")
                raise
            _take_back_cancellation()
            ending = _CLIENT_STALLED if call.client.stalled else _CLIENT_LEFT
            result, outcome = Cancelled(time.monotonic()), ending.outcome
        timeline.end_attempt(outcome, result.at_s, note)
        return result, ending

    async def _exchange(self, step: Generate, call: Call) -> Ending:
        worker = self._workers[step.worker.name]
        headers = [
            (b"content-type", b"application/json"),
            (b"x-request-id", _attempt_id(call.request_id, step.attempt)),
        ]
        async with await worker.send("POST", call.path, headers=headers, body=call.body) as reply:
            call.timeline.note_sent(reply.sent_at_s)
            content_type = _content_type(reply)
            head = [(b"content-type", content_type), *call.reply_headers]
            if reply.status == 200:
                if content_type.startswith(b"text/event-stream"):
                    return await _relay_stream(reply, head, call)
                return await _relay_plain(reply, head, call)
            if 400 <= reply.status < 500:
                return await _relay_refusal(reply, head, call)
            raise UpstreamError(FailureKind.SERVER_ERROR, f"the worker answered with HTTP {reply.status}")


async def _relay_stream(reply: StreamedReply, head: Headers, call: Call) -> Ending:
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
    return _SERVED


async def _relay_plain(reply: StreamedReply, head: Headers, call: Call) -> Ending:
    body = await reply.read_all(FETCH_LIMIT_BYTES)
    await call.client.respond(200, head, body)
    # Read when the client already has it: nobody waits for our notes.
    call.timeline.note_answer(read_plain_answer(body))
    return _SERVED


async def _relay_refusal(reply: StreamedReply, head: Headers, call: Call) -> Ending:
    body = await reply.read_all(FETCH_LIMIT_BYTES)
    await call.client.respond(reply.status, head, body)
    return Ending(Outcome.REJECTED, ENGINE_REFUSED)


async def _reject(step: Reject, call: Call) -> Ending:
    await send_error(call.client, step.reason, step.detail, headers=call.reply_headers)
    outcome = Outcome.REJECTED if step.reason in _NEVER_STARTED else Outcome.FAILED
    return Ending(outcome, step.reason)


def _content_type(reply: StreamedReply) -> bytes:
    for name, value in reply.headers:
        if name == b"content-type":
            return value
    return b"application/json"


def _attempt_id(request_id: str, attempt: int) -> bytes:
    # A second attempt may meet the first one's remains on the same worker: engines want ids that differ.
    return request_id.encode() if attempt == 1 else f"{request_id}-{attempt}".encode()


def _take_back_cancellation() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
