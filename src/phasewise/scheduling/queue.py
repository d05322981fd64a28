"""Requests that wait for a slot on a worker, by model: bounded, in the order of their aged priorities.

Only request_flow writes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

PACE_OVER_GRANTS = 64
"""The last grants from which a queue's rate is computed."""
SHARE_OF_RETURNED = 0.5
"""The share of the queue's rate that is promised to rejected requests that retry; new ones have the rest."""
SOONEST_RETURN_S = 1.0
LATEST_RETURN_S = 600.0
"""Rejected clients that reach this bound retry at the same time, so it is far above what an overload
reaches."""


class Ticket:
    """A position in the queue. `on_grant` is called once, when a slot is granted; the driver sets it.

    It must not call into a flow, because it runs in the middle of another flow's step.
    """

    __slots__ = ("granted", "model", "number", "on_grant", "order_s", "waiting")

    def __init__(self, number: int, model: str, order_s: float) -> None:
        self.number = number
        self.model = model
        self.order_s = order_s
        self.waiting = True
        self.granted = False
        self.on_grant: Callable[[], None] | None = None


class _Queue:
    """The tickets of one model. A ticket that left is removed when it reaches the heap's top, or in bulk."""

    __slots__ = ("_heap", "granted", "waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []
        self.waiting = 0
        self.granted = 0

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.granted

    def push(self, ticket: Ticket) -> None:
        heappush(self._heap, (ticket.order_s, ticket.number, ticket))
        self.waiting += 1

    def pop(self) -> Ticket:
        while not (ticket := heappop(self._heap)[2]).waiting:
            pass
        self.waiting -= 1
        return ticket

    def forget_one(self) -> None:
        """One waiting ticket has left."""
        self.waiting -= 1
        if len(self._heap) > 2 * self.waiting + PACE_OVER_GRANTS:
            self._heap = [entry for entry in self._heap if entry[2].waiting]
            heapify(self._heap)

    def check_invariants(self) -> None:
        inside = sum(ticket.waiting for _, _, ticket in self._heap)
        if inside != self.waiting or self.granted < 0:
            raise AssertionError(
                f"queue out of step: {self.waiting} waiting but {inside} tickets, {self.granted} granted"
            )


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

    A ticket's priority grows by one for every `aging_s` it waits, so no ticket starves.
    """

    def __init__(self, capacity: int = 1_000, aging_s: float = 5.0) -> None:
        self._capacity = capacity
        self._aging_s = aging_s
        self._by_model: dict[str, _Queue] = {}
        self._paces: dict[str, _Pace] = {}
        self._waiting = 0
        self._next_number = 0

    def __len__(self) -> int:
        """How many tickets wait, without those already granted."""
        return self._waiting

    @property
    def models(self) -> tuple[str, ...]:
        """The models with waiting tickets."""
        return tuple(model for model, queue in self._by_model.items() if queue.waiting)

    def is_waiting(self, model: str) -> bool:
        """Whether a ticket of the model waits, or is granted and not yet used."""
        return model in self._by_model

    def join(
        self, model: str, priority: int, since_s: float, now_s: float, *, even_if_full: bool = False
    ) -> Ticket | None:
        """A ticket for a request that waits since `since_s`; None if the queue is full."""
        if self._waiting >= self._capacity and not even_if_full:
            return None
        # All tickets age alike, so the order of two never changes.
        ticket = Ticket(self._next_number, model, since_s - priority * self._aging_s)
        self._next_number += 1
        self._push(ticket, now_s)
        return ticket

    def rejoin(self, ticket: Ticket, now_s: float) -> Ticket:
        """The old position again, for a granted ticket that found the slot gone."""
        again = Ticket(ticket.number, ticket.model, ticket.order_s)
        self._push(again, now_s)
        return again

    def leave(self, ticket: Ticket) -> None:
        """The ticket's flow goes on, granted or not; a slot that it was granted is free again."""
        queue = self._by_model[ticket.model]
        if ticket.granted:
            queue.granted -= 1
        else:
            ticket.waiting = False
            self._waiting -= 1
            queue.forget_one()
        if queue.empty:
            del self._by_model[ticket.model]

    def grant(self, model: str, free_slots: int, now_s: float) -> None:
        """Grant tickets until all free slots are granted."""
        queue = self._by_model.get(model)
        while queue is not None and queue.waiting and queue.granted < free_slots:
            ticket = queue.pop()
            ticket.waiting, ticket.granted = False, True
            self._waiting -= 1
            queue.granted += 1
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
        if self._waiting != sum(queue.waiting for queue in self._by_model.values()):
            raise AssertionError(f"queue out of step: {self._waiting} waiting over all")

    def _push(self, ticket: Ticket, now_s: float) -> None:
        queue = self._by_model.get(ticket.model)
        if queue is None:
            queue = self._by_model[ticket.model] = _Queue()
            self._paces.setdefault(ticket.model, _Pace()).begin(now_s)
        queue.push(ticket)
        self._waiting += 1
