"""What a hand-over of KV may take in this gateway, and what is counted of those that were tried.

The bodies that workers are asked with are hand_over_bodies.py's, asking them exchange.py's; what follows from
a hand-over that failed is the flow's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from phasewise.errors import FailureKind, UpstreamError
from phasewise.gateway.answer import Answer, account_of
from phasewise.gateway.hand_over_bodies import kv_params
from phasewise.model.hand_over import HandOverOutcome, KvTicket
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import WorkerRef

SHARE_OF_LEASE = 0.5
"""A ticket is good for so much of the time for which an engine keeps KV that nobody asks for: the decode
engine renews the lease, but not before it has the request."""

_COUNTED_AS = {
    FailureKind.SERVER_ERROR: HandOverOutcome.REFUSED,
    FailureKind.TIMED_OUT: HandOverOutcome.TIMED_OUT,
    FailureKind.TOO_LATE: HandOverOutcome.TOO_LATE,
}
_OF_THE_PAIR = frozenset({FailureKind.SERVER_ERROR, FailureKind.TIMED_OUT})
"""What says before the first content that KV did not come, and nothing of the worker that waited for it."""


@dataclass(frozen=True, slots=True)
class HandOvers:
    """The bounds of hand-overs. `answers` tells whether a worker is there, still the same incarnation."""

    timeout_s: float
    lease_s: float
    answers: Callable[[WorkerRef], bool]
    count: Callable[[HandOverOutcome], None]

    def ticket(
        self, source: WorkerRef, reply: bytes, answer: Answer, request: GenerationRequest, good_until_s: float
    ) -> KvTicket:
        """What a prefill worker's reply is good for; raises UpstreamError where it kept no KV."""
        if (params := kv_params(reply)) is None:
            self.count(HandOverOutcome.NO_KV)
            raise UpstreamError(
                FailureKind.HAND_OVER,
                f"{source.name} computed a prompt and kept no KV of it to be fetched",
                hint="start its engine with a KV connector: `phasewise check` says what is missing",
            )
        prompt_tokens = answer.report.prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = request.estimated_prompt_tokens
        return KvTicket(source, params, prompt_tokens, good_until_s)

    def good_until_s(self, sent_s: float, received_s: float, answer: Answer) -> float:
        """Until when the KV behind a reply may be asked for.

        The engine keeps it from the end of the prefill on. This process may have seen the reply late, so
        that moment is told by the engine's own times where it gave them.
        """
        account = account_of(answer)
        if account.queue_s is not None and account.prefill_s is not None:
            received_s = min(received_s, sent_s + account.queue_s + account.prefill_s)
        return received_s + self.lease_s * SHARE_OF_LEASE

    @asynccontextmanager
    async def bounded(self, kv: KvTicket, *, streamed: bool) -> AsyncGenerator[Callable[[], None]]:
        """Give up on a decode worker that brings no first content in time; what is yielded says that it came.

        An engine whose source stands still waits for ever. A stream is given up at the time. Of a plain reply
        nobody sees the first token: it is given up if the source does not answer by then. Later nothing is
        told by a source that goes away: the KV has long been fetched.
        """
        try:
            async with asyncio.timeout(None) as limit:
                first = _FirstContent(
                    limit,
                    self.timeout_s,
                    is_hopeless=lambda: streamed or not self.answers(kv.source),
                    on_come=lambda: self.count(HandOverOutcome.DONE),
                )
                try:
                    yield first.came
                finally:
                    first.stop_waiting()
        except TimeoutError:
            self.count(HandOverOutcome.TIMED_OUT)
            message = f"no first token within {self.timeout_s:g} s of asking for the KV of {kv.source.name}"
            raise UpstreamError(FailureKind.HAND_OVER, message) from None
        except UpstreamError as error:
            if first.has_come:
                raise
            self.count(_COUNTED_AS.get(error.kind, HandOverOutcome.BROKEN))
            if error.kind not in _OF_THE_PAIR:
                raise
            message = f"{error.message} to a request with the KV of {kv.source.name}"
            raise UpstreamError(FailureKind.HAND_OVER, message) from error


class _FirstContent:
    """Whether the first content has come. Where it has not in time and `is_hopeless`, the limit is over."""

    __slots__ = ("_is_hopeless", "_limit", "_on_come", "_timer", "has_come")

    def __init__(
        self,
        limit: asyncio.Timeout,
        wait_s: float,
        is_hopeless: Callable[[], bool],
        on_come: Callable[[], None],
    ) -> None:
        self.has_come = False
        self._limit = limit
        self._is_hopeless = is_hopeless
        self._on_come = on_come
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def came(self) -> None:
        """It has."""
        self._timer.cancel()
        if not self._limit.expired():
            self._limit.reschedule(None)
            self.has_come = True
            self._on_come()

    def stop_waiting(self) -> None:
        """Nobody waits for it any longer."""
        self._timer.cancel()

    def _look(self) -> None:
        if self._is_hopeless():
            self._limit.reschedule(asyncio.get_running_loop().time())
