"""Counts requests against their keys' limits together with other gateways, and goes on when the store fails.

One task speaks to the store, so that what concerns one request reaches it in order, and sends all that has
gathered meanwhile in one trip. Speaking Redis is adapters/redis_quotas.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from phasewise.adapters.redis_quotas import Operation, Renew, Settle, Take, Waits
from phasewise.errors import StoreUnreachable
from phasewise.gateway.guard import Guard
from phasewise.gateway.process_quotas import ProcessQuotas
from phasewise.model.limits import Lease, Limits, NotCounted, OverLimit, QuotaAnswer
from phasewise.state.quota_book import cost_us, over_limit

LEASE_S = 10.0
"""How long the places of a gateway that was killed stay taken."""
RENEW_EVERY_S = 3.0
TRY_AGAIN_EVERY_S = 1.0
REACH_WITHIN_S = 1.0
"""Nobody waits for a connection that is made in the background."""
STOP_WITHIN_S = 2.0
MAX_BATCH = 256
MAX_KEPT_SETTLEMENTS = 10_000

logger = logging.getLogger("phasewise.gateway")


class QuotaStore(Protocol):
    """Where gateways count together."""

    async def perform(self, operations: Sequence[Operation], deadline_s: float) -> list[Waits | None]:
        """Perform all in this order; raises StoreUnreachable."""

    async def close(self) -> None:
        """Let the connection go."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that the store has counted."""

    lease: Lease
    limits: Limits


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A request that waits to be counted; the answer is None if the store failed."""

    take: Take
    opens: _Open
    answer: asyncio.Future[Lease | OverLimit | None]


class SharedQuotas:
    """Asks the store while it answers; while it does not, counts alone or refuses, and costs no request time.

    A lease is settled where it was taken.
    """

    def __init__(
        self,
        store: QuotaStore,
        alone: ProcessQuotas,
        deadline_s: float,
        when_down: Literal["count_alone", "refuse"],
    ) -> None:
        self._store = store
        self._alone = alone
        self._deadline_s = deadline_s
        self._refuses = when_down == "refuse"
        self._degraded = True
        self._open: dict[str, _Open] = {}
        self._asked: deque[_Asked] = deque()
        # Bounded, since the store may stay away: a place that is not given back is free when its lease ends.
        self._settlements: deque[Settle] = deque(maxlen=MAX_KEPT_SETTLEMENTS)
        self._renewal_due = False
        self._wake = asyncio.Event()
        self._stopping = False
        self._lease_prefix, self._leases_made = secrets.token_hex(8), 0
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    @property
    def degraded(self) -> bool:
        """Whether the store does not answer."""
        return self._degraded

    async def start(self) -> None:
        """Reach for the store, and keep in touch from now on. Without it the gateway starts all the same."""
        if why := await self._reach():
            self._tell_down(why)
        self._tasks = (asyncio.create_task(self._converse()), asyncio.create_task(self._remind_to_renew()))

    async def stop(self) -> None:
        """Tell the store what is still to tell, and let it go."""
        self._stopping = True
        self._wake.set()
        conversing, reminding = self._tasks
        reminding.cancel()
        if self._degraded:
            conversing.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN_S):
                await asyncio.gather(conversing, reminding, return_exceptions=True)
        await self._store.close()

    async def take(self, key_id: str, limits: Limits, tokens: int) -> QuotaAnswer:
        """Count one request."""
        if not self._degraded:
            asked = self._ask(key_id, limits, tokens)
            try:
                answer = await asked.answer
            except asyncio.CancelledError:
                # The answer may have come before the cancellation did, and nobody will see it.
                if asked.answer.done() and not asked.answer.cancelled():
                    self._give_back(asked)
                raise
            if answer is not None:
                return answer
        if self._refuses:
            return NotCounted(TRY_AGAIN_EVERY_S)
        return await self._alone.take(key_id, limits, tokens)

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """The request has ended."""
        if not lease.shared:
            self._alone.settle(lease, used_tokens)
            return
        limits = self._open.pop(lease.lease_id).limits
        per_minute = limits.tokens_per_minute
        used = lease.tokens if used_tokens is None else used_tokens
        correction = cost_us(used, per_minute) - cost_us(lease.tokens, per_minute)
        if correction or limits.max_concurrent is not None:
            self._tell(Settle(lease.key_id, lease.lease_id, 0, correction))

    # --- what is to be told -------------------------------------------------------------------------------

    def _ask(self, key_id: str, limits: Limits, tokens: int) -> _Asked:
        self._leases_made += 1
        lease = Lease(f"{self._lease_prefix}-{self._leases_made}", key_id, tokens, shared=True)
        take = Take(
            key_id,
            lease.lease_id,
            cost_us(1, limits.requests_per_minute),
            cost_us(tokens, limits.tokens_per_minute),
            limits.max_concurrent or 0,
        )
        asked = _Asked(take, _Open(lease, limits), asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        self._wake.set()
        return asked

    def _give_back(self, asked: _Asked) -> None:
        """All that a request took whose client left while it was being counted."""
        take = asked.take
        if self._open.pop(take.lease_id, None) is not None:
            self._tell(Settle(take.key_id, take.lease_id, -take.request_cost_us, -take.token_cost_us))

    def _tell(self, settlement: Settle) -> None:
        self._settlements.append(settlement)
        self._wake.set()

    def _renewals(self) -> list[Renew]:
        lease_ids: dict[str, list[str]] = defaultdict(list)
        for opened in self._open.values():
            if opened.limits.max_concurrent is not None:
                lease_ids[opened.lease.key_id].append(opened.lease.lease_id)
        return [Renew(key_id, tuple(ids)) for key_id, ids in lease_ids.items()]

    # --- telling it ---------------------------------------------------------------------------------------

    async def _converse(self) -> None:
        guard = Guard("counting limits together")
        while not self._stopping or (self._settlements and not self._degraded):
            with guard:
                await (self._try_again() if self._degraded else self._send_what_gathers())

    async def _try_again(self) -> None:
        await asyncio.sleep(TRY_AGAIN_EVERY_S)
        if await self._reach() is None:
            logger.warning("Redis answers again: limits are counted together")

    async def _send_what_gathers(self) -> None:
        await self._wake.wait()
        self._wake.clear()
        while not self._degraded and (self._asked or self._settlements or self._renewal_due):
            await self._send()

    async def _remind_to_renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            self._renewal_due = True
            self._wake.set()

    async def _reach(self) -> str | None:
        """Why the store cannot be used, None if it can. It may have lost what is under way, so it is told."""
        try:
            await self._store.perform(self._renewals(), REACH_WITHIN_S)
            await self._store.perform((), self._deadline_s)
        except Exception as error:
            return _why(error)
        self._degraded = False
        self._wake.set()
        return None

    async def _send(self) -> None:
        """One trip. An end comes before a renewal, which knows of it; and makes room for a beginning."""
        settlements = [self._settlements.popleft() for _ in range(min(MAX_BATCH, len(self._settlements)))]
        renewals = self._renewals() if self._renewal_due else []
        self._renewal_due = False
        asked = [self._asked.popleft() for _ in range(min(MAX_BATCH, len(self._asked)))]
        asked = [one for one in asked if not one.answer.cancelled()]
        operations: list[Operation] = [*settlements, *renewals, *(one.take for one in asked)]
        try:
            answers = await self._store.perform(operations, self._deadline_s)
            refusals = [_refusal(waits) for waits in answers[len(operations) - len(asked) :]]
        except Exception as error:
            # Anything: who waits for an answer must get one.
            self._went_down(_why(error), [*settlements, *(one.take for one in asked)])
            for one in asked:
                _answer(one, None)
        else:
            for one, refusal in zip(asked, refusals, strict=True):
                self._counted(one, refusal)

    def _counted(self, asked: _Asked, refusal: OverLimit | None) -> None:
        if refusal is None:
            self._open[asked.take.lease_id] = asked.opens
        if asked.answer.cancelled():
            self._give_back(asked)
        else:
            asked.answer.set_result(refusal or asked.opens.lease)

    # --- when the store fails -----------------------------------------------------------------------------

    def _went_down(self, why: str, sent: Sequence[Take | Settle]) -> None:
        self._degraded = True
        self._tell_down(why)
        # Nobody knows whether these arrived. A place may be given back twice, a charge may not.
        self._settlements.extend(Settle(one.key_id, one.lease_id, 0, 0) for one in sent)
        while self._asked:
            _answer(self._asked.popleft(), None)

    def _tell_down(self, why: str) -> None:
        rule = "requests of keys with limits are refused" if self._refuses else "limits are counted alone"
        logger.warning("%s: %s until it does", why, rule)


def _refusal(waits: Waits | None) -> OverLimit | None:
    if waits is None:
        raise TypeError("a request that is counted is answered by waits")
    return over_limit(*waits)


def _why(error: Exception) -> str:
    """In words, which of an error that was not foreseen are left out."""
    if isinstance(error, StoreUnreachable):
        return str(error)
    return f"Redis answers what cannot be understood ({type(error).__name__})"


def _answer(asked: _Asked, answer: None) -> None:
    if not asked.answer.cancelled():
        asked.answer.set_result(answer)
