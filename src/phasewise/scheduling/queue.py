"""Requests that wait for a slot on a worker, by model: bounded, shared out fairly between tenants.

Each tenant has a line of its own, in the order of aged priorities. A freed slot lets the next one in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from phasewise.scheduling.tenant_lines import Holder, ModelQueue, Tenant, Ticket

__all__ = ["Tenant", "Ticket", "WaitingQueue"]

PACE_OVER_GRANTS = 64
"""The last grants from which a queue's rate is computed."""
SHARE_OF_RETURNED = 0.5
"""The share of the queue's rate that is promised to rejected requests that retry; new ones have the rest."""
SOONEST_RETURN_S = 1.0
DEFAULT_AGING_S = 5.0
LATEST_RETURN_S = 600.0
"""Rejected clients that reach this bound retry at the same time, so it is far above what an overload
reaches."""


class _Pace:
    """The rate of a queue, and how many rejected requests have still to return."""

    __slots__ = ("_began_s", "_grants", "_reported_s", "_yet_to_return")

    def __init__(self) -> None:
        self._grants: deque[float] = deque(maxlen=PACE_OVER_GRANTS)
        self._yet_to_return = 0.0
        self._began_s = self._reported_s = 0.0

    def begin(self, now_s: float) -> None:
        """The queue forms again. Requests that returned before found a slot, and old grants say nothing."""
        self._grants.clear()
        self._yet_to_return = 0.0
        self._began_s = self._reported_s = now_s

    def granted(self, now_s: float) -> None:
        self._grants.append(now_s)

    def return_after_s(self, waiting: int, now_s: float) -> float:
        """When the queue would reach one more request, if all rejected ones returned in their order.

        With one short time for all they would return at once and leave no slot for new requests.
        """
        returning_per_s = SHARE_OF_RETURNED * self._per_s(waiting, now_s)
        returned = returning_per_s * (now_s - self._reported_s)
        self._yet_to_return = max(0.0, self._yet_to_return - returned) + 1.0
        self._reported_s = now_s
        after_s = (waiting + self._yet_to_return) / returning_per_s
        return min(LATEST_RETURN_S, max(SOONEST_RETURN_S, after_s))

    def _per_s(self, waiting: int, now_s: float) -> float:
        if self._grants and now_s > self._grants[0]:
            return len(self._grants) / (now_s - self._grants[0])
        # Nothing was granted yet. A queue that has stood for this long is expected to need as long again.
        return max(1, waiting) / max(SOONEST_RETURN_S, now_s - self._began_s)


class WaitingQueue:
    """Tickets in the order in which they are granted.

    Within a tenant's line, a ticket's priority grows by one for every `aging_s` it waits, so no ticket
    starves. A full queue still takes tickets of tenants that have less than their share of it: it holds at
    most twice its capacity.
    """

    def __init__(self, capacity: int = 1_000, aging_s: float = DEFAULT_AGING_S) -> None:
        self._capacity = capacity
        self._aging_s = aging_s
        self._by_model: dict[str, ModelQueue] = {}
        self._paces: dict[str, _Pace] = {}
        self._holders: dict[str, dict[str, Holder]] = {}
        self._waiting = 0
        self._waiting_by_tenant: dict[str, int] = {}
        self._next_number = 0

    def set_bounds(self, capacity: int, aging_s: float) -> None:
        """Other bounds; tickets that wait keep theirs."""
        self._capacity = capacity
        self._aging_s = aging_s

    def __len__(self) -> int:
        """How many tickets wait, without those already granted."""
        return self._waiting

    @property
    def models(self) -> tuple[str, ...]:
        """The models with waiting tickets."""
        return tuple(model for model, queue in self._by_model.items() if queue.waiting)

    def waiting(self, model: str) -> int:
        """How many tickets of the model wait."""
        return self._by_model[model].waiting if model in self._by_model else 0

    @property
    def waiting_by_tenant(self) -> Mapping[str, int]:
        """How many tickets of each tenant wait; only tenants that have some."""
        return self._waiting_by_tenant

    def is_waiting(self, model: str) -> bool:
        """Whether a ticket of the model waits, or is granted and not yet used."""
        return model in self._by_model

    # --- slots in use -----------------------------------------------------------------------------------

    def hold(self, model: str, tenant: Tenant) -> None:
        """A request of the tenant is on a worker."""
        holders = self._holders.setdefault(model, {})
        holder = holders.get(tenant.name)
        if holder is None:
            holders[tenant.name] = Holder(1, tenant.weight)
        else:
            holder.slots += 1
            holder.weight = tenant.weight

    def release(self, model: str, tenant: Tenant) -> None:
        """It has left the worker."""
        holders = self._holders[model]
        holder = holders[tenant.name]
        holder.slots -= 1
        if not holder.slots:
            del holders[tenant.name]

    # --- tickets ------------------------------------------------------------------------------------------

    def join(
        self,
        model: str,
        priority: int,
        since_s: float,
        now_s: float,
        *,
        tenant: Tenant = Tenant(),  # noqa: B008 - immutable
        work: float = 1.0,
        even_if_full: bool = False,
    ) -> Ticket | None:
        """A ticket for a request that waits since `since_s`; None if the queue is full. `work` is in
        tokens.
        """
        if not even_if_full and self._is_full_for(tenant):
            return None
        # All tickets age alike, so the order of two never changes.
        order_s = since_s - priority * self._aging_s
        ticket = Ticket(self._next_number, model, priority, since_s, order_s, tenant, work)
        self._next_number += 1
        self._push(ticket, now_s)
        return ticket

    def rejoin(self, ticket: Ticket, now_s: float) -> Ticket:
        """The old position again, for a granted ticket that found the slot gone."""
        again = replace(ticket, waiting=True, granted=False, on_grant=None)
        self._push(again, now_s)
        self._by_model[ticket.model].lines[ticket.tenant.name].served -= ticket.work / ticket.tenant.weight
        return again

    def leave(self, ticket: Ticket) -> None:
        """The ticket's flow goes on, granted or not; a slot that it was granted is free again."""
        queue = self._by_model[ticket.model]
        if not ticket.granted:
            self._forget(ticket)
        queue.leave(ticket)
        if queue.empty:
            del self._by_model[ticket.model]

    def grant(self, model: str, free_slots: int, now_s: float) -> None:
        """Grant tickets until all free slots are granted."""
        queue = self._by_model.get(model)
        while queue is not None and queue.waiting and queue.granted < free_slots:
            ticket = queue.pop(free_slots, self._holders.get(model, {}), self._aging_s, now_s)
            self._forget(ticket)
            self._paces[model].granted(now_s)
            if ticket.on_grant is not None:
                ticket.on_grant()

    def reject(self, model: str, now_s: float) -> float:
        """The seconds after which a request that found no slot should retry."""
        pace, queue = self._paces.get(model), self._by_model.get(model)
        if pace is None:
            return SOONEST_RETURN_S
        return pace.return_after_s(0 if queue is None else queue.waiting, now_s)

    def check_invariants(self) -> None:
        """The counts match the tickets, and no empty queue is kept."""
        for model, queue in self._by_model.items():
            queue.check_invariants()
            if queue.empty:
                raise AssertionError(f"the empty queue of {model} is kept")
        counted = sum(queue.waiting for queue in self._by_model.values())
        if len(self) != counted or len(self) != sum(self._waiting_by_tenant.values()):
            raise AssertionError(f"queue out of step: {len(self)} waiting over all")

    def _is_full_for(self, tenant: Tenant) -> bool:
        if self._waiting < self._capacity:
            return False
        own = self._waiting_by_tenant.get(tenant.name, 0)
        tenants = len(self._waiting_by_tenant) + (not own)
        return own * tenants >= self._capacity

    def _push(self, ticket: Ticket, now_s: float) -> None:
        queue = self._by_model.get(ticket.model)
        if queue is None:
            queue = self._by_model[ticket.model] = ModelQueue()
            self._paces.setdefault(ticket.model, _Pace()).begin(now_s)
        queue.push(ticket)
        self._waiting += 1
        name = ticket.tenant.name
        self._waiting_by_tenant[name] = self._waiting_by_tenant.get(name, 0) + 1

    def _forget(self, ticket: Ticket) -> None:
        """It waits no longer."""
        self._waiting -= 1
        left = self._waiting_by_tenant[ticket.tenant.name] - 1
        if left:
            self._waiting_by_tenant[ticket.tenant.name] = left
        else:
            del self._waiting_by_tenant[ticket.tenant.name]
