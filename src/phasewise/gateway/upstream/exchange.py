"""Runs one attempt of a request on a worker over HTTP and returns its outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from phasewise.clients.http_client import FETCH_LIMIT_BYTES, HttpClient, StreamedReply
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.kv_transfer import KvTicket, KvTransferOutcome
from phasewise.core.request import Endpoint
from phasewise.core.timeline import NO_ACCOUNT, AttemptKind, Outcome
from phasewise.core.trace_context import engine_headers
from phasewise.gateway.kv_transfer.tickets import KvTransfers, decode_body, prefill_body
from phasewise.gateway.records.timeline_builder import attempt_outcome
from phasewise.gateway.server.client import Headers
from phasewise.gateway.upstream.call import CLIENT_LEFT, CLIENT_STALLED, SERVED, Call, Ending
from phasewise.gateway.upstream.continuation import (
    ClientsView,
    ContinuedStream,
    completion_ending,
    failure_of_continuing,
    tokens_so_far,
)
from phasewise.gateway.upstream.relay import Begun, relay_plain, relay_rejection, relay_stream
from phasewise.gateway.upstream.response import PlainRelay, account_of, read_plain_answer
from phasewise.gateway.upstream.resumption import Obstacle, resumption
from phasewise.scheduling import Cancelled, Failed, Generate, Prefill, Prefilled, Succeeded

Result = Prefilled | Succeeded | Failed | Cancelled
Settling = Coroutine[Any, Any, tuple[Result, Ending]]
"""An attempt that was begun: it runs when it is awaited."""

_CUT_OFF = "length"
_RESPONSES, _FORWARDED = Endpoint.RESPONSES.value, Endpoint.FORWARDED
NOT_IMPLEMENTED = 501


class Exchange:
    """Talks to workers, one client per worker. With `resumes`, another worker resumes a broken answer."""

    def __init__(
        self, workers: Mapping[str, HttpClient], kv_transfers: KvTransfers, *, resumes: bool = True
    ) -> None:
        self._workers = workers
        self._kv_transfers = kv_transfers
        self._resumes = resumes

    def prefill(self, step: Prefill, call: Call) -> Settling:
        """Perform one step; the client gets a response only if the engine rejects the request."""
        call.timeline.begin_attempt(step.worker.ref, time.monotonic(), AttemptKind.PREFILL_SIDE)
        call.timeline.note_placement(step.decision)
        return self._settle(call, self._prefill(step, call))

    def generate(self, step: Generate, call: Call) -> Settling:
        """Perform one step; the client has been answered unless it failed."""
        timeline = call.timeline
        timeline.begin_attempt(step.worker.ref, time.monotonic(), _kind(step))
        timeline.note_placement(step.decision)
        if step.trial is not None:
            chunks = len(call.resumption.answer.content_times_s) if call.resumption else 0
            step.trial.answered = lambda: timeline.content_chunks > chunks
        if step.resumes:
            return self._settle(call, self._resume(step, call))
        if step.kv is not None:
            return self._settle(call, self._generate_with_kv(step, step.kv, call))
        return self._settle(call, self._generate(step, call, _body(step, call), step.on_first_content))

    async def _settle(
        self, call: Call, attempt: Coroutine[Any, Any, Ending | KvTicket]
    ) -> tuple[Result, Ending]:
        """Await an attempt and record its outcome."""
        timeline = call.timeline
        note: str | None = None
        if call.leads is not None:
            call.leads.placed()
        try:
            came = await attempt
            ending = SERVED if isinstance(came, KvTicket) else came
            result, note = _succeeded(call, came), ending.note
            if call.client.stalled or call.client.left:
                # Only the end of the answer was left to send, so nothing was interrupted.
                result = Cancelled(result.at_s, _tokens(call))
                ending = CLIENT_STALLED if call.client.stalled else CLIENT_LEFT
            outcome = ending.outcome
        except UpstreamError as error:
            result, note = self.broken(error, call)
            outcome = attempt_outcome(error.kind)
            ending = Ending(outcome, error.kind)
            if call.leads is not None:
                call.leads.lost()
        except asyncio.CancelledError:
            if not call.client.gone:
                timeline.end_attempt(Outcome.CANCELLED, time.monotonic(), "the gateway was stopped")
                raise
            take_back_cancellation()
            ending = CLIENT_STALLED if call.client.stalled else CLIENT_LEFT
            result, outcome = Cancelled(time.monotonic(), _tokens(call)), ending.outcome
        timeline.end_attempt(outcome, result.at_s, note)
        return result, ending

    def broken(self, error: UpstreamError, call: Call) -> tuple[Failed, str]:
        """The outcome of an answer that broke off, with whether it can be resumed, and a note."""
        now_s, note, tokens = time.monotonic(), error.message, _tokens_of_failed(call, error.kind)
        if not call.client.started:
            return Failed(now_s, error.kind, content_sent=False, tokens=tokens), note
        answer = call.timeline.answer
        if not self._resumes or answer is None or error.kind is FailureKind.NOT_CONTINUED:
            return Failed(now_s, error.kind, content_sent=True, tokens=tokens), note
        found = resumption(call.timeline.request.endpoint, call.body, answer, call.resumption)
        if isinstance(found, Obstacle):
            return Failed(now_s, error.kind, content_sent=True, tokens=tokens), f"{note}; {found.reason}"
        call.resumption = found
        return Failed(now_s, error.kind, content_sent=True, resumable=True, tokens=tokens), note

    def _client(self, step: Prefill | Generate) -> HttpClient:
        client = self._workers.get(step.worker.name)
        if client is None:
            raise UpstreamError(FailureKind.CONNECTION_REFUSED, "the worker is not configured any more")
        return client

    async def _generate(
        self, step: Generate, call: Call, body: bytes, begun: Begun, not_after_s: float | None = None
    ) -> Ending:
        worker = self._client(step)
        headers = _headers(step, call)
        async with await worker.send(
            call.method, call.path, headers=headers, body=body, not_after_s=not_after_s
        ) as reply:
            call.timeline.note_sent(reply.sent_at_s)
            content_type = _content_type(reply)
            head = [(b"content-type", content_type), *call.reply_headers]
            if reply.status == 200:
                if content_type.startswith(b"text/event-stream"):
                    relay = None if call.timeline.request.endpoint is not _FORWARDED else PlainRelay()
                    return await relay_stream(reply, head, call, begun, relay)
                return await relay_plain(reply, head, call, begun)
            # An engine without this ability is healthy.
            if 400 <= reply.status < 500 or reply.status == NOT_IMPLEMENTED:
                return await relay_rejection(reply, head, call)
            raise _server_error(reply)

    # --- on two workers -------------------------------------------------------------------------------------

    async def _prefill(self, step: Prefill, call: Call) -> Ending | KvTicket:
        worker, source = self._client(step), step.worker.ref
        headers, body = _headers(step, call), prefill_body(call.body)
        try:
            async with await worker.send("POST", call.path, headers=headers, body=body) as reply:
                call.timeline.note_sent(reply.sent_at_s)
                if 400 <= reply.status < 500:
                    head = [(b"content-type", _content_type(reply)), *call.reply_headers]
                    return await relay_rejection(reply, head, call)
                if reply.status != 200:
                    raise _server_error(reply)
                kept = await reply.read_all(FETCH_LIMIT_BYTES)
        except UpstreamError:
            self._kv_transfers.count(KvTransferOutcome.BROKEN)
            raise
        answer = read_plain_answer(kept)
        call.timeline.note_answer(answer)
        good_until_s = self._kv_transfers.good_until_s(reply.sent_at_s, time.monotonic(), answer)
        return self._kv_transfers.ticket(source, kept, answer, call.timeline.request, good_until_s)

    async def _generate_with_kv(self, step: Generate, kv: KvTicket, call: Call) -> Ending:
        body = decode_body(call.body, kv.params)
        async with self._kv_transfers.bounded(kv, streamed=call.timeline.request.stream) as note_begun:

            def begun() -> None:
                note_begun()
                if step.on_first_content is not None:
                    step.on_first_content()

            return await self._generate(step, call, body, begun, kv.good_until_s)

    # --- resuming a broken answer ---------------------------------------------------------------------------

    async def _resume(self, step: Generate, call: Call) -> Ending:
        plan = call.resumption
        if plan is None:
            raise RuntimeError("there is no broken answer to resume")
        answer = plan.answer_so_far()
        call.timeline.note_answer(answer)
        worker = self._client(step)
        tokens = await tokens_so_far(worker, plan)
        view = ClientsView(
            plan.endpoint, plan.client_id, plan.created, len(tokens.prompt_ids), len(tokens.answer_ids)
        )
        body = plan.continuation(tokens)
        again = "" if body is None else plan.again
        relay = ContinuedStream(answer, view, again=again, hide_usage=call.hide_usage)
        if body is None:
            rest = completion_ending(plan.fields["model"], None if answer.finish_reason else _CUT_OFF)
            last = relay.feed(rest, time.monotonic())
            if call.leads is not None:
                call.leads.carry(answer)
            call.note_whole(answer)
            await call.client.finish(last)
            return SERVED
        headers = _headers(step, call)
        async with await worker.send("POST", Endpoint.COMPLETIONS.value, headers=headers, body=body) as reply:
            if reply.status != 200 or not _content_type(reply).startswith(b"text/event-stream"):
                raise UpstreamError(
                    failure_of_continuing(reply.status), f"the worker did not resume (HTTP {reply.status})"
                )
            return await relay_stream(reply, (), call, step.on_first_content, relay)


# --- What is sent to a worker, and what an attempt counted.


def take_back_cancellation() -> None:
    """Undo the cancellation by a client's disconnect, so that the task can record the request's end."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _kind(step: Generate) -> AttemptKind:
    if step.kv is not None:
        return AttemptKind.DECODE_SIDE
    return AttemptKind.RESUMED if step.resumes else AttemptKind.LOCAL


def _succeeded(call: Call, came: Ending | KvTicket) -> Result:
    now_s = time.monotonic()
    if isinstance(came, KvTicket):
        return Prefilled(now_s, came, account_of(call.timeline.answer))
    if came.outcome is Outcome.REJECTED:
        return Succeeded(now_s, 0)
    return Succeeded(now_s, _tokens(call), account_of(call.timeline.answer))


def _server_error(reply: StreamedReply) -> UpstreamError:
    return UpstreamError(FailureKind.SERVER_ERROR, f"the worker answered with HTTP {reply.status}")


def _tokens(call: Call) -> int | None:
    """The tokens of prompt and answer: as the engine counted them, else estimated from the stream.

    The estimate counts one token per chunk.
    """
    answer, request = call.timeline.answer, call.timeline.request
    account = NO_ACCOUNT if answer is None else answer.account
    if account.prompt_tokens is not None and account.output_tokens is not None:
        return account.prompt_tokens + account.output_tokens
    return request.estimated_prompt_tokens + call.timeline.content_chunks if request.stream else None


def _tokens_of_failed(call: Call, kind: FailureKind) -> int:
    """The tokens of a failed attempt: the client got nothing of a plain reply that broke off."""
    if kind in (FailureKind.CONNECTION_REFUSED, FailureKind.NO_SOCKET):
        return 0
    tokens = _tokens(call)
    return call.timeline.request.estimated_prompt_tokens if tokens is None else tokens


def _headers(step: Generate | Prefill, call: Call) -> Headers:
    headers = [(b"content-type", call.content_type), (b"x-request-id", _attempt_id(step, call).encode())]
    if (trace := call.timeline.trace) is not None:
        headers += engine_headers(trace, call.request_id, call.timeline.attempt_number)
    return headers


def _attempt_id(step: Generate | Prefill, call: Call) -> str:
    # The first attempt may still run on the same worker, and engines need distinct ids.
    return call.request_id if step.attempt == 1 else f"{call.request_id}-{step.attempt}"


def _body(step: Generate, call: Call) -> bytes:
    if call.path != _RESPONSES:
        return call.body
    # Here engines do not read the id from the header.
    return call.body.rstrip()[:-1] + b',"request_id":"resp_%b"}' % _attempt_id(step, call).encode()


def _content_type(reply: StreamedReply) -> bytes:
    for name, value in reply.headers:
        if name == b"content-type":
            return value
    return b"application/json"
