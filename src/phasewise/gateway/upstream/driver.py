"""Performs the steps of a request's flow and sends their outcomes to the flow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from phasewise.core.decision import RejectReason
from phasewise.core.ports import Lease, Quotas
from phasewise.core.request import Limits
from phasewise.core.timeline import Outcome
from phasewise.gateway.answer_cache.cached_responses import CachedResponses
from phasewise.gateway.http_errors import send_error, stream_error_event
from phasewise.gateway.quarantine import Quarantine
from phasewise.gateway.upstream.call import (
    CLIENT_LEFT,
    CLIENT_STALLED,
    STOPPED,
    Call,
    Ending,
    Reservation,
)
from phasewise.gateway.upstream.exchange import Exchange, take_back_cancellation
from phasewise.scheduling import (
    CacheMiss,
    Cancelled,
    CountAndLookUp,
    FollowIdentical,
    Generate,
    Granted,
    LookAgain,
    LookedUp,
    LookUpCache,
    Prefill,
    QuotaAnswered,
    Reject,
    RequestFlow,
    ServeStored,
    TimedOut,
    Wait,
)
from phasewise.scheduling import Outcome as StepOutcome

_STOP = Reject(RejectReason.GATEWAY_STOPPED, "the gateway stops; another may be there", 1.0)


class FlowDriver:
    """Drives flows: workers by `exchange`, limits by `quotas`, stored answers by `found`, if any.

    `quarantine` knows which requests it must not get.
    """

    def __init__(
        self,
        exchange: Exchange,
        quotas: Quotas,
        quarantine: Quarantine,
        found: CachedResponses | None = None,
    ) -> None:
        self._exchange = exchange
        self._quotas = quotas
        self.quarantine = quarantine
        self.found = found

    async def drive(self, flow: RequestFlow, call: Call) -> Ending:
        """Perform the flow's steps until the request has ended and its client has been answered."""
        ending = CLIENT_LEFT
        try:
            step = next(flow)
            while not isinstance(step, Reject):
                outcome: StepOutcome
                if isinstance(step, Generate):
                    outcome, ending = await self._exchange.generate(step, call)
                elif isinstance(step, Prefill):
                    outcome, ending = await self._exchange.prefill(step, call)
                elif isinstance(step, LookUpCache) and call.cache is None:
                    outcome = CacheMiss(time.monotonic())
                elif isinstance(step, ServeStored | FollowIdentical | LookAgain):
                    outcome, ending = await self._stored.perform(step, call)
                else:
                    outcome = await self._perform(step, call)
                    # If the flow ends here, the client did not wait.
                    ending = CLIENT_STALLED if call.client.stalled else CLIENT_LEFT
                try:
                    step = flow.send(outcome)
                except StopIteration:
                    return ending
        except asyncio.CancelledError:
            if call.client.gone:
                raise
            take_back_cancellation()
            await _reject(_STOP, call)
            return STOPPED
        finally:
            # Releases what the flow booked, whatever interrupts it.
            flow.close()
        if self.found is not None:
            self.found.rejected(call)
        return await _reject(step, call)

    @property
    def _stored(self) -> CachedResponses:
        if self.found is None:
            raise RuntimeError("this gateway has no answer cache")
        return self.found

    async def _perform(self, step: LookUpCache | CountAndLookUp | Wait, call: Call) -> StepOutcome:
        """A step during which the client may leave."""
        try:
            if isinstance(step, Wait):
                began_s = time.monotonic()
                try:
                    return await wait_for_grant(step)
                finally:
                    call.timeline.note_queue(time.monotonic() - began_s)
            if isinstance(step, LookUpCache):
                return await self._stored.look_up(call)
            return await self._count_and_look_up(step, call)
        except asyncio.CancelledError:
            if not call.client.gone:
                raise
            take_back_cancellation()
            return Cancelled(time.monotonic())

    async def _count_and_look_up(
        self, step: CountAndLookUp, call: Call
    ) -> tuple[QuotaAnswered, LookedUp | Cancelled]:
        """Both at once; if the client left, the count is still returned, to be given back.

        The look-up stops once the request is rejected: embedders have few slots.
        """
        if call.cache is None:
            return await charge(self._quotas, step, call.reservation), CacheMiss(time.monotonic())
        looking = asyncio.create_task(self._stored.look_up(call))
        try:
            counted = await charge(self._quotas, step, call.reservation)
            if not isinstance(counted.answer, Lease):
                looking.cancel()
                await asyncio.wait({looking})
                self._stored.record_miss(call)
                return counted, CacheMiss(time.monotonic())
            try:
                return counted, await looking
            except asyncio.CancelledError:
                if not call.client.gone:
                    raise
                take_back_cancellation()
                return counted, Cancelled(time.monotonic())
        finally:
            looking.cancel()


async def charge(quotas: Quotas, step: CountAndLookUp, reservation: Reservation) -> QuotaAnswered:
    """Charge the tokens; the request was counted before its body was read. The flow gets the lease."""
    lease = reservation.lease
    if lease is None:
        raise RuntimeError("a request with limits was not counted before its body was read")
    per_minute, more = step.limits.tokens_per_minute, step.tokens - lease.tokens
    if per_minute is not None and more > 0:
        answer = await quotas.take(step.key_id, Limits(tokens_per_minute=per_minute), more)
        if not isinstance(answer, Lease):
            return QuotaAnswered(time.monotonic(), answer)
        quotas.settle(answer, None)
        lease = replace(lease, tokens=lease.tokens + answer.tokens)
    reservation.lease = None
    return QuotaAnswered(time.monotonic(), lease)


async def wait_for_grant(step: Wait) -> Granted | TimedOut:
    """Wait until the step's ticket is granted, or until its time."""
    if not step.ticket.granted:
        granted = asyncio.get_running_loop().create_future()
        step.ticket.on_grant = lambda: None if granted.done() else granted.set_result(None)
        try:
            async with asyncio.timeout(max(0.0, step.until_s - time.monotonic())):
                await granted
        except TimeoutError:
            if not step.ticket.granted:
                return TimedOut(time.monotonic())
    return Granted(time.monotonic())


async def _reject(step: Reject, call: Call) -> Ending:
    begun = call.client.started
    if begun:
        event = stream_error_event(step.reason, typed=call.typed, anthropic=call.client.is_anthropic)
        await call.client.finish(event)
    else:
        await send_error(
            call.client,
            step.reason,
            step.detail,
            headers=call.reply_headers,
            retry_after_s=step.retry_after_s,
        )
    return Ending(Outcome.FAILED if step.attempts or begun else Outcome.REJECTED, step.reason)
