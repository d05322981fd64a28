"""What a disaggregated request needs: a body for each of its two workers, and a ticket for the KV."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson

from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.kv_transfer import ASKS_TO_KEEP_KV, KvTicket, KvTransferOutcome
from phasewise.core.request import GenerationRequest
from phasewise.core.request_fields import fields_where
from phasewise.core.worker import WorkerRef
from phasewise.gateway.upstream.response import Answer, account_of

KV_PARAMS = "kv_transfer_params"

DEFINES_PROMPT = frozenset(fields_where(lambda row: row.prefill == "prompt"))
"""The fields that the prefill worker gets: all that determine the prompt's tokens."""
_KV_FIELD = b'"%b":' % KV_PARAMS.encode()


def prefill_body(body: bytes) -> bytes:
    """The body that asks a prefill worker to compute the prompt and keep its KV."""
    fields = {name: value for name, value in orjson.loads(body).items() if name in DEFINES_PROMPT}
    return orjson.dumps({**fields, "max_tokens": 1, "stream": False, KV_PARAMS: ASKS_TO_KEEP_KV})


def decode_body(body: bytes, params: bytes) -> bytes:
    """The body that asks a decode worker for the answer with that KV; `body` is a non-empty JSON object."""
    # Spliced in before the closing brace, so that a long prompt is not serialized again.
    return body.rstrip()[:-1] + b",%b%b}" % (_KV_FIELD, params)


def kv_params(reply: bytes) -> bytes | None:
    """Where the KV is, from a prefill worker's reply; None if it kept none."""
    try:
        fields = orjson.loads(reply)
    except orjson.JSONDecodeError:
        return None
    params = fields.get(KV_PARAMS) if isinstance(fields, dict) else None
    return orjson.dumps(params) if isinstance(params, dict) and params else None


def without_kv_params(reply: bytes) -> bytes:
    """The reply for the client, without the engines' internal KV parameters."""
    # Quotes in a string would be escaped, so this is the field; mostly it is null.
    at = reply.rfind(_KV_FIELD)
    if at < 0 or reply[at + len(_KV_FIELD) : at + len(_KV_FIELD) + 8].lstrip().startswith(b"null"):
        return reply
    try:
        fields = orjson.loads(reply)
    except orjson.JSONDecodeError:
        return reply
    if isinstance(fields, dict):
        fields.pop(KV_PARAMS, None)
    return orjson.dumps(fields)


# --- The time bounds of KV transfers, and the counts of their outcomes.

SHARE_OF_LEASE = 0.5
"""The share of the engine's KV lease for which a ticket is good: the decode engine renews the lease, but only
once it has the request."""

_COUNTED_AS = {
    FailureKind.SERVER_ERROR: KvTransferOutcome.REJECTED,
    FailureKind.TIMED_OUT: KvTransferOutcome.TIMED_OUT,
    FailureKind.TOO_LATE: KvTransferOutcome.TOO_LATE,
}
_OF_THE_PAIR = frozenset({FailureKind.SERVER_ERROR, FailureKind.TIMED_OUT})
"""Failures before the first content that mean that the KV did not come; the decode worker is not at fault."""


@dataclass(frozen=True, slots=True)
class KvTransfers:
    """The bounds of KV transfers. `answers` says whether a worker is up, in the same incarnation."""

    timeout_s: float
    lease_s: float
    answers: Callable[[WorkerRef], bool]
    count: Callable[[KvTransferOutcome], None]

    def ticket(
        self, source: WorkerRef, reply: bytes, answer: Answer, request: GenerationRequest, good_until_s: float
    ) -> KvTicket:
        """The ticket for a prefill worker's KV; raises UpstreamError if it kept none."""
        if (params := kv_params(reply)) is None:
            self.count(KvTransferOutcome.NO_KV)
            raise UpstreamError(
                FailureKind.KV_TRANSFER,
                f"{source.name} computed a prompt and kept no KV of it to be fetched",
                hint="start its engine with a KV connector: `phasewise check` says what is missing",
            )
        prompt_tokens = answer.account.prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = request.estimated_prompt_tokens
        return KvTicket(source, params, prompt_tokens, good_until_s)

    def good_until_s(self, sent_s: float, received_s: float, answer: Answer) -> float:
        """Until when the KV of a reply may be fetched.

        The engine's lease starts at the end of the prefill. This process may have seen the reply late, so the
        engine's own times are used if it reports them.
        """
        account = account_of(answer)
        if account.queue_s is not None and account.prefill_s is not None:
            received_s = min(received_s, sent_s + account.queue_s + account.prefill_s)
        return received_s + self.lease_s * SHARE_OF_LEASE

    @asynccontextmanager
    async def bounded(self, kv: KvTicket, *, streamed: bool) -> AsyncGenerator[Callable[[], None]]:
        """Give up on a decode worker without first content in time; call what is yielded when it came.

        An engine whose source hangs waits for ever. A stream is given up at the timeout. In a plain reply the
        first token is not visible, so it is given up only if the source does not answer at the timeout. After
        that the KV has been fetched, and the source no longer matters.
        """
        loop, limit, has_come = asyncio.get_running_loop(), asyncio.timeout(None), False

        def give_up() -> None:
            if streamed or not self.answers(kv.source):
                limit.reschedule(loop.time())

        def come() -> None:
            nonlocal has_come
            timer.cancel()
            if not limit.expired():
                limit.reschedule(None)
                has_come = True
                self.count(KvTransferOutcome.DONE)

        timer = loop.call_later(self.timeout_s, give_up)
        try:
            async with limit:
                yield come
        except TimeoutError:
            self.count(KvTransferOutcome.TIMED_OUT)
            message = f"no first token within {self.timeout_s:g} s of asking for the KV of {kv.source.name}"
            raise UpstreamError(FailureKind.KV_TRANSFER, message) from None
        except UpstreamError as error:
            if has_come:
                raise
            self.count(_COUNTED_AS.get(error.kind, KvTransferOutcome.BROKEN))
            if error.kind not in _OF_THE_PAIR:
                raise
            message = f"{error.message} to a request with the KV of {kv.source.name}"
            raise UpstreamError(FailureKind.KV_TRANSFER, message) from error
        finally:
            timer.cancel()
