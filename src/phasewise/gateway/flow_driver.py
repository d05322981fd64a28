"""Performs the steps of a request's flow and sends the flow what came of them.

Which steps, in which order, is the flow's to decide; talking to workers is exchange.py's, serving what needs
none found_answers.py's.
"""

from __future__ import annotations

import asyncio
import time

from phasewise.gateway.call import CLIENT_LEFT, CLIENT_STALLED, STOPPED, Call, Ending
from phasewise.gateway.exchange import Exchange, take_back_cancellation
from phasewise.gateway.found_answers import FoundAnswers
from phasewise.gateway.http_errors import send_error, stream_error_event
from phasewise.model.decision import RejectReason
from phasewise.model.limits import Lease
from phasewise.model.timeline import Outcome
from phasewise.ports import Quotas
from phasewise.request_flow import (
    CacheHit,
    CacheMiss,
    Cancelled,
    Generate,
    Granted,
    LookUpCache,
    Prefill,
    QuotaAnswered,
    Reject,
    RequestFlow,
    ServeFound,
    TakeQuota,
    TimedOut,
    Together,
    Wait,
)
from phasewise.request_flow import Outcome as StepOutcome

_STOP = Reject(RejectReason.GATEWAY_STOPPED, "the gateway stops; another may be there", 1.0)


class FlowDriver:
    """Drives flows: workers by `exchange`, limits by `quotas`, stored answers by `found` if there are any."""

    def __init__(self, exchange: Exchange, quotas: Quotas, found: FoundAnswers | None = None) -> None:
        self._exchange = exchange
        self._quotas = quotas
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
                elif isinstance(step, ServeFound):
                    outcome, ending = await self._stored.serve(call)
                else:
                    outcome = await self._perform(step, call)
                    # If the flow ends here, then because the client did not wait.
                    ending = CLIENT_STALLED if call.client.stalled else CLIENT_LEFT
                try:
                    step = flow.send(outcome)
                except StopIteration:
                    return ending
        except asyncio.CancelledError:
            if call.client.gone:
                raise
            return await _stop(call)
        finally:
            # Whatever interrupts a flow, what it booked is released.
            flow.close()
        if self.found is not None:
            self.found.refused(call)
        return await _reject(step, call)

    @property
    def _stored(self) -> FoundAnswers:
        if self.found is None:
            raise RuntimeError("a request asks for stored answers where none are kept")
        return self.found

    async def _perform(self, step: TakeQuota | LookUpCache | Together | Wait, call: Call) -> StepOutcome:
        """A step during which the client may leave."""
        try:
            if isinstance(step, Wait):
                return await _wait(step)
            if isinstance(step, TakeQuota):
                return await self._take(step)
            if isinstance(step, LookUpCache):
                return await self._look_up(call)
            return await self._take_and_look_up(step, call)
        except asyncio.CancelledError:
            if not call.client.gone:
                raise
            take_back_cancellation()
            return Cancelled(time.monotonic())

    async def _take_and_look_up(
        self, step: Together, call: Call
    ) -> tuple[QuotaAnswered | CacheHit | CacheMiss | Cancelled, ...]:
        """Both at once; what was counted when the client left is told, to be given back.

        Nothing is looked for any further once the request is known to be refused: embedders have few places.
        """
        quota = next(it for it in step.steps if isinstance(it, TakeQuota))
        if call.cache is None:
            return await self._take(quota), CacheMiss(time.monotonic())
        looking = asyncio.create_task(self._look_up(call))
        try:
            counted = await self._take(quota)
            if not isinstance(counted.answer, Lease):
                looking.cancel()
                await asyncio.wait({looking})
                self._stored.turned_away(call)
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

    async def _look_up(self, call: Call) -> CacheHit | CacheMiss:
        return await self._stored.look_up(call)

    async def _take(self, step: TakeQuota) -> QuotaAnswered:
        answer = await self._quotas.take(step.key_id, step.limits, step.tokens)
        return QuotaAnswered(time.monotonic(), answer)


async def _wait(step: Wait) -> Granted | TimedOut:
    if not step.ticket.granted:
        turn = asyncio.get_running_loop().create_future()
        step.ticket.on_grant = lambda: None if turn.done() else turn.set_result(None)
        try:
            async with asyncio.timeout(max(0.0, step.until_s - time.monotonic())):
                await turn
        except TimeoutError:
            if not step.ticket.granted:
                return TimedOut(time.monotonic())
    return Granted(time.monotonic())


async def _stop(call: Call) -> Ending:
    """Tell a client who is still there that the gateway's time to finish is over."""
    take_back_cancellation()
    await _reject(_STOP, call)
    return STOPPED


async def _reject(step: Reject, call: Call) -> Ending:
    begun = call.client.started
    if begun:
        await call.client.finish(stream_error_event(step.reason))
    else:
        await send_error(
            call.client,
            step.reason,
            step.detail,
            headers=call.reply_headers,
            retry_after_s=step.retry_after_s,
        )
    return Ending(Outcome.FAILED if step.attempts or begun else Outcome.REJECTED, step.reason)
