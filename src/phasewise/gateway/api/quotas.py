"""Counts keys' limits: in this process, or together with other gateways in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from phasewise.clients.redis_quotas import Operation, RedisQuotas, Renew, Settle, Take, Waits
from phasewise.core.errors import StoreUnreachable
from phasewise.core.ports import Lease, NotCounted, OverLimit, QuotaAnswer
from phasewise.core.request import Limits
from phasewise.fleet.config import GatewayConfig
from phasewise.gateway.guard import ErrorGuard
from phasewise.scheduling.quota_book import QuotaBook, bucket_full_in_us, cost_us, over_limit

# --- Counts requests against their keys' limits in this process alone, by its own clock.


class ProcessQuotas:
    """One book for one process. Implements the port Quotas and never waits."""

    degraded = False

    def __init__(self) -> None:
        self._book = QuotaBook()

    async def take(self, key_id: str, limits: Limits, tokens: int) -> Lease | OverLimit:
        """Count one request."""
        return self._book.take(key_id, limits, tokens, time.monotonic())

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """The request has ended."""
        self._book.settle(lease, used_tokens, time.monotonic())

    def go_on_from(self, key_id: str, take: Take, waits: Waits, at_s: float) -> None:
        """Count this key from where a store was that answered this at a time of `time.monotonic`."""
        passed = over_limit(*waits) is None
        requests_full_in_us = bucket_full_in_us(waits[0], take.request_cost_us, passed)
        tokens_full_in_us = bucket_full_in_us(waits[1], take.token_cost_us, passed)
        self._book.go_on_from(key_id, requests_full_in_us, tokens_full_in_us, at_s)

    async def start(self) -> None:
        """Nothing to connect."""

    async def stop(self) -> None:
        """Nothing to close."""


# --- Counts requests against their keys' limits together with other gateways, and goes on if the store fails.
#
# One task talks to the store, so that the operations of one request arrive in order. It sends all pending
# operations in one round trip.

LEASE_S = 10.0
"""How long the slots of a killed gateway stay in use."""
RENEW_EVERY_S = 3.0
TRY_AGAIN_EVERY_S = 1.0
REACH_WITHIN_S = 1.0
"""The time for a connection in the background."""
STOP_WITHIN_S = 2.0
MAX_BATCH = 256
MAX_KEPT_SETTLEMENTS = 10_000

logger = logging.getLogger("phasewise.gateway")


@dataclass(frozen=True, slots=True)
class _SharedLease:
    """A request that the store has counted."""

    lease: Lease
    limits: Limits


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A request that waits to be counted; the answer is None if the store failed."""

    take: Take
    opens: _SharedLease
    answer: asyncio.Future[Lease | OverLimit | None]


class SharedQuotas:
    """Uses the store while it answers; otherwise counts alone or rejects, without delay for requests.

    Counting alone begins where the store's last answers left each key, so that a store that was late once
    gives nobody another minute's worth. A lease is settled where it was taken.
    """

    def __init__(
        self,
        store: RedisQuotas,
        alone: ProcessQuotas,
        deadline_s: float,
        when_down: Literal["count_alone", "reject"],
    ) -> None:
        self._store = store
        self._alone = alone
        self._deadline_s = deadline_s
        self._rejects = when_down == "reject"
        self._degraded = True
        self._open: dict[str, _SharedLease] = {}
        self._last: dict[str, tuple[Take, Waits, float]] = {}
        """The store's last answer for each key, and when it came: counting alone begins there."""
        self._asked: deque[_Asked] = deque()
        # Bounded, because the store may stay down: a slot that is not released is free when its lease ends.
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
        """Connect to the store and keep the connection. The gateway starts without it, too."""
        if why := await self._reach():
            self._report_down(why)
        self._tasks = (asyncio.create_task(self._converse()), asyncio.create_task(self._remind_to_renew()))

    async def stop(self) -> None:
        """Send pending operations to the store, and close it."""
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
                # The answer may have come before the cancellation, and would be lost.
                if asked.answer.done() and not asked.answer.cancelled():
                    self._give_back(asked)
                raise
            if answer is not None:
                return answer
        if self._rejects:
            return NotCounted(TRY_AGAIN_EVERY_S)
        if (last := self._last.pop(key_id, None)) is not None:
            self._alone.go_on_from(key_id, *last)
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
            self._notify(Settle(lease.key_id, lease.lease_id, 0, correction))

    # --- pending operations -------------------------------------------------------------------------------

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
        asked = _Asked(take, _SharedLease(lease, limits), asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        self._wake.set()
        return asked

    def _give_back(self, asked: _Asked) -> None:
        """Give back what a request took whose client left while it was counted."""
        take = asked.take
        if self._open.pop(take.lease_id, None) is not None:
            self._notify(Settle(take.key_id, take.lease_id, -take.request_cost_us, -take.token_cost_us))

    def _notify(self, settlement: Settle) -> None:
        self._settlements.append(settlement)
        self._wake.set()

    def _renewals(self) -> list[Renew]:
        lease_ids: dict[str, list[str]] = defaultdict(list)
        for opened in self._open.values():
            if opened.limits.max_concurrent is not None:
                lease_ids[opened.lease.key_id].append(opened.lease.lease_id)
        return [Renew(key_id, tuple(ids)) for key_id, ids in lease_ids.items()]

    # --- sending ------------------------------------------------------------------------------------------

    async def _converse(self) -> None:
        guard = ErrorGuard("counting limits together")
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
        """Why the store cannot be used, None if it can.

        All open leases are renewed: it may have lost them.
        """
        try:
            await self._store.perform(self._renewals(), REACH_WITHIN_S)
            await self._store.perform((), self._deadline_s)
        except Exception as error:
            return _why(error)
        self._degraded = False
        self._wake.set()
        return None

    async def _send(self) -> None:
        """One round trip.

        Settlements come first: renewals omit them, and they free slots for new requests.
        """
        settlements = [self._settlements.popleft() for _ in range(min(MAX_BATCH, len(self._settlements)))]
        renewals = self._renewals() if self._renewal_due else []
        self._renewal_due = False
        asked = [self._asked.popleft() for _ in range(min(MAX_BATCH, len(self._asked)))]
        asked = [one for one in asked if not one.answer.cancelled()]
        operations: list[Operation] = [*settlements, *renewals, *(one.take for one in asked)]
        try:
            answers = await self._store.perform(operations, self._deadline_s)
            counted = [_counted_as(waits) for waits in answers[len(operations) - len(asked) :]]
        except Exception as error:
            # Any error: every waiting request must get an answer.
            self._went_down(_why(error), [*settlements, *(one.take for one in asked)])
            for one in asked:
                _leave_uncounted(one)
        else:
            for one, (waits, rejection) in zip(asked, counted, strict=True):
                self._counted(one, waits, rejection)

    def _counted(self, asked: _Asked, waits: Waits, rejection: OverLimit | None) -> None:
        self._last[asked.take.key_id] = asked.take, waits, time.monotonic()
        if rejection is None:
            self._open[asked.take.lease_id] = asked.opens
        if asked.answer.cancelled():
            self._give_back(asked)
        else:
            asked.answer.set_result(rejection or asked.opens.lease)

    # --- when the store fails -----------------------------------------------------------------------------

    def _went_down(self, why: str, sent: Sequence[Take | Settle]) -> None:
        self._degraded = True
        self._report_down(why)
        # It is unknown whether these arrived. A slot may be released twice, but not a charge.
        self._settlements.extend(Settle(one.key_id, one.lease_id, 0, 0) for one in sent)
        while self._asked:
            _leave_uncounted(self._asked.popleft())

    def _report_down(self, why: str) -> None:
        rule = "requests of keys with limits are rejected" if self._rejects else "limits are counted alone"
        logger.warning("%s: %s until it does", why, rule)


def _counted_as(waits: Waits | None) -> tuple[Waits, OverLimit | None]:
    """Raises TypeError for what is no answer to a request."""
    if waits is None:
        raise TypeError("the store returned no waits for a request")
    return waits, over_limit(*waits)


def _why(error: Exception) -> str:
    """The reason; of an unexpected error only its kind."""
    if isinstance(error, StoreUnreachable):
        return str(error)
    return f"Redis returned an unexpected answer ({type(error).__name__})"


def _leave_uncounted(asked: _Asked) -> None:
    if not asked.answer.cancelled():
        asked.answer.set_result(None)


GatewayQuotas = ProcessQuotas | SharedQuotas
"""Quotas that start and stop with the gateway."""


def build_quotas(config: GatewayConfig) -> GatewayQuotas:
    """The quotas of a configuration. They make no connection before they start."""
    alone = ProcessQuotas()
    if config.redis is not None:
        store = RedisQuotas(config.redis.url, config.redis.key_prefix, LEASE_S)
        return SharedQuotas(store, alone, config.redis.deadline_s, config.redis.when_down)
    if any(key.has_limits for key in config.api_keys):
        logger.info(
            "keys' limits are counted by this gateway alone. hint: with several gateways set gateway.redis"
        )
    return alone
