"""Runs one attempt of a request on a worker over HTTP and says what came of it.

What passes on to the client is relay.py's, how an answer is taken up elsewhere resumption.py's; whether there
is another attempt is the flow's to decide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from phasewise.adapters.http_client import HttpClient, StreamedReply
from phasewise.errors import FailureKind, UpstreamError
from phasewise.gateway.call import CLIENT_LEFT, CLIENT_STALLED, Call, Ending
from phasewise.gateway.relay import relay_plain, relay_refusal, relay_stream
from phasewise.gateway.timeline_builder import attempt_outcome
from phasewise.model.timeline import Outcome
from phasewise.request_flow import Cancelled, Failed, Generate, Succeeded

Result = Succeeded | Failed | Cancelled


class Exchange:
    """Talks to workers, one client per worker."""

    def __init__(self, workers: Mapping[str, HttpClient]) -> None:
        self._workers = workers

    async def generate(self, step: Generate, call: Call) -> tuple[Result, Ending]:
        """Perform one step; the client has been answered unless it failed."""
        timeline = call.timeline
        timeline.begin_attempt(step.worker.ref, time.monotonic())
        note: str | None = None
        try:
            ending = await self._exchange(step, call)
            result: Result = Succeeded(time.monotonic())
            if call.client.stalled:
                # Only the very end of the answer was left, so that nothing had to be interrupted.
                result, ending = Cancelled(result.at_s), CLIENT_STALLED
            outcome = ending.outcome
        except UpstreamError as error:
            result = Failed(time.monotonic(), error.kind, content_sent=call.client.started)
            outcome, note = attempt_outcome(error.kind), error.message
            ending = Ending(outcome, error.kind)
        except asyncio.CancelledError:
            if not call.client.gone:
                timeline.end_attempt(Outcome.CANCELLED, time.monotonic(), "the gateway was stopped")
                raise
            take_back_cancellation()
            ending = CLIENT_STALLED if call.client.stalled else CLIENT_LEFT
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
                    return await relay_stream(reply, head, call)
                return await relay_plain(reply, head, call)
            if 400 <= reply.status < 500:
                return await relay_refusal(reply, head, call)
            raise UpstreamError(FailureKind.SERVER_ERROR, f"the worker answered with HTTP {reply.status}")


def take_back_cancellation() -> None:
    """The client's leaving cancelled the task that serves it, which has an end to write down all the same."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _content_type(reply: StreamedReply) -> bytes:
    for name, value in reply.headers:
        if name == b"content-type":
            return value
    return b"application/json"


def _attempt_id(request_id: str, attempt: int) -> bytes:
    # A second attempt may meet the first one's remains on the same worker: engines want ids that differ.
    return request_id.encode() if attempt == 1 else f"{request_id}-{attempt}".encode()
