"""Reserves quota and memory for each request, and bounds the memory of all bodies."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.ports import Lease, Quotas
from phasewise.gateway.api.auth import Caller
from phasewise.gateway.overload import LARGE_BODY_BYTES, OverloadWatch
from phasewise.gateway.upstream.call import Reservation
from phasewise.scheduling import Reject, over_quota

ReadBody = Callable[..., Awaitable[bytes]]
UNSIZED_BYTES = 512 * 1024
"""Reserved for a body whose size is not said beforehand. If it has more, as much as one body may have is
reserved until it is read: if each took what it needs part by part, some could wait for each other."""


@dataclass(slots=True)
class _Waiting:
    size_bytes: int
    reservation: Reservation
    granted: asyncio.Future[None]


class Reservations:
    """Reserves quota and memory for each request.

    A body waits for its memory before it is read. Those of a tenant are granted in order, except that small
    ones do not wait for large ones.
    """

    def __init__(
        self, quotas: Quotas, overload: OverloadWatch, body_bytes: int, bodies_bytes: int, tenants: int = 1
    ) -> None:
        self.overload = overload
        self._quotas = quotas
        self.reserved_bytes = 0
        self._by_tenant: dict[str, int] = {}
        self._waiting: dict[tuple[str, bool], deque[_Waiting]] = {}
        self.set_bounds(body_bytes, bodies_bytes, tenants)

    def set_bounds(self, body_bytes: int, bodies_bytes: int, tenants: int) -> None:
        """From now on one body and all bodies may have so much. With several tenants, none may have more than
        it leaves to others, so that there is always some for the next.
        """
        self._body_bytes = body_bytes
        self._bodies_bytes = bodies_bytes
        self._shared = tenants > 1
        self._grant()

    async def count(self, caller: Caller, reservation: Reservation) -> Reject | None:
        """Count the request against its key's limits; returns the rejection, if any.

        Its tokens are unknown yet: it is charged one, and the flow driver charges the rest.
        """
        answer = await self._quotas.take(caller.key_id, caller.limits, 1)
        if not isinstance(answer, Lease):
            return over_quota(answer, caller.limits)
        reservation.lease = answer
        return None

    async def read_body(
        self, read: ReadBody, size_bytes: int | None, caller: Caller, reservation: Reservation, until_s: float
    ) -> bytes:
        """The request's body. Its memory is reserved before, by `until_s` on the monotonic clock."""
        reservation.tenant = caller.tenant
        if size_bytes is not None:
            await self._reserve(size_bytes, reservation, until_s)
            return await read(self._body_bytes)
        most_bytes = min(self._body_bytes, self._bodies_bytes // 2)
        await self._reserve(min(UNSIZED_BYTES, most_bytes), reservation, until_s)
        size_bytes = 0

        async def grow(more_bytes: int) -> None:
            nonlocal size_bytes
            size_bytes += more_bytes
            if size_bytes > reservation.body_bytes:
                more_bytes = max(most_bytes, size_bytes) - reservation.body_bytes
                await self._reserve(more_bytes, reservation, until_s)

        body = await read(self._body_bytes, grow)
        self._give_back(reservation.body_bytes - len(body), reservation)
        return body

    def release(self, reservation: Reservation) -> None:
        """The request has ended."""
        self._give_back(reservation.body_bytes, reservation)
        if reservation.lease is not None:
            self._quotas.settle(reservation.lease, 0)

    async def _reserve(self, size_bytes: int, reservation: Reservation, until_s: float) -> None:
        key = reservation.tenant, size_bytes <= LARGE_BODY_BYTES
        if key not in self._waiting and self._fits(size_bytes, reservation.tenant):
            self._book(size_bytes, reservation)
            return
        if size_bytes > self._bodies_bytes:
            raise _full()
        waiting = _Waiting(size_bytes, reservation, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, deque()).append(waiting)
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                await waiting.granted
        except TimeoutError:
            raise _full() from None
        finally:
            # Whoever gave up lets those behind it pass.
            self._grant()

    def _grant(self) -> None:
        for key, queue in list(self._waiting.items()):
            while queue:
                first = queue[0]
                if not first.granted.done():
                    if not self._fits(first.size_bytes, first.reservation.tenant):
                        break
                    self._book(first.size_bytes, first.reservation)
                    first.granted.set_result(None)
                queue.popleft()
            else:
                del self._waiting[key]

    def _fits(self, size_bytes: int, tenant: str) -> bool:
        free_bytes = self._bodies_bytes - self.reserved_bytes
        own_bytes = self._by_tenant.get(tenant, 0) if self._shared else 0
        return own_bytes + size_bytes <= free_bytes

    def _book(self, size_bytes: int, reservation: Reservation) -> None:
        self.reserved_bytes += size_bytes
        reservation.body_bytes += size_bytes
        self._by_tenant[reservation.tenant] = self._by_tenant.get(reservation.tenant, 0) + size_bytes

    def _give_back(self, size_bytes: int, reservation: Reservation) -> None:
        if size_bytes <= 0:
            return
        self.reserved_bytes -= size_bytes
        reservation.body_bytes -= size_bytes
        left_bytes = self._by_tenant[reservation.tenant] - size_bytes
        if left_bytes:
            self._by_tenant[reservation.tenant] = left_bytes
        else:
            del self._by_tenant[reservation.tenant]
        if self._waiting:
            self._grant()


def _full() -> RequestRejected:
    return RequestRejected(
        RejectionKind.BODIES_FULL,
        "the memory for request bodies is full",
        hint="try again soon; the operator can raise gateway.limits.bodies",
    )
