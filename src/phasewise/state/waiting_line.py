"""Requests that wait for room on a worker, by model: bounded, and in the order of their aged priorities.

Written by request_flow only. When there is room, and how long a request may wait, is the flow's to know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

PACE_OVER_GRANTS = 64
"""How fast the line moves is told from the last so many grants."""
SHORTEST_ADVICE_S = 1.0
LONGEST_ADVICE_S = 60.0


class Ticket:
    """A place in the line. `on_grant` is called once, when its turn has come; a driver sets it.

    It must not call into a flow: it is called in the middle of another one's step.
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
    """Those who wait for one model. Who left is taken out of the heap when it is met there, or in bulk."""

    __slots__ = ("granted", "grants", "heap", "waiting")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Ticket]] = []
        self.waiting = 0
        self.granted = 0
        self.grants: deque[float] = deque(maxlen=PACE_OVER_GRANTS)

    def push(self, ticket: Ticket) -> None:
        heappush(self.heap, (ticket.order_s, ticket.number, ticket))
        self.waiting += 1

    def pop(self) -> Ticket:
        while not (ticket := heappop(self.heap)[2]).waiting:
            pass
        self.waiting -= 1
        return ticket

    def forget_one(self) -> None:
        self.waiting -= 1
        if len(self.heap) > 2 * self.waiting + PACE_OVER_GRANTS:
            self.heap = [entry for entry in self.heap if entry[2].waiting]
            heapify(self.heap)


class WaitingLine:
    """Tickets in the order in which they are granted.

    A ticket's priority grows by one for every `aging_s` it waits, so that nothing waits for ever.
    """

    def __init__(self, capacity: int = 1_000, aging_s: float = 5.0) -> None:
        self._capacity = capacity
        self._aging_s = aging_s
        self._queues: dict[str, _Queue] = {}
        self._waiting = 0
        self._next_number = 0

    def __len__(self) -> int:
        """How many wait, those granted and not yet gone not counted."""
        return self._waiting

    @property
    def models(self) -> tuple[str, ...]:
        """The models that somebody waits for."""
        return tuple(model for model, queue in self._queues.items() if queue.waiting)

    def is_waiting(self, model: str) -> bool:
        """Whether somebody waits for the model, or has been granted room and not yet used it."""
        return model in self._queues

    def join(self, model: str, priority: int, since_s: float, *, even_if_full: bool = False) -> Ticket | None:
        """A place in the line for a request that waits since then; None if the line is full."""
        if self._waiting >= self._capacity and not even_if_full:
            return None
        # Waiting for aging_s counts as one more of priority, so the order of two tickets never changes.
        ticket = Ticket(self._next_number, model, since_s - priority * self._aging_s)
        self._next_number += 1
        self._push(ticket)
        return ticket

    def rejoin(self, ticket: Ticket) -> Ticket:
        """Its old place again, for a ticket that left granted and found the room gone."""
        again = Ticket(ticket.number, ticket.model, ticket.order_s)
        self._push(again)
        return again

    def leave(self, ticket: Ticket) -> None:
        """The ticket's flow goes on, granted or not; room that it was granted is free again."""
        queue = self._queues[ticket.model]
        if ticket.granted:
            queue.granted -= 1
        else:
            ticket.waiting = False
            self._waiting -= 1
            queue.forget_one()
        if not queue.waiting and not queue.granted:
            del self._queues[ticket.model]

    def grant(self, model: str, room: int, now_s: float) -> None:
        """Grant tickets while the room lasts that was not granted before."""
        queue = self._queues.get(model)
        while queue is not None and queue.waiting and queue.granted < room:
            ticket = queue.pop()
            ticket.waiting, ticket.granted = False, True
            self._waiting -= 1
            queue.granted += 1
            queue.grants.append(now_s)
            if ticket.on_grant is not None:
                ticket.on_grant()

    def expected_wait_s(self, model: str, now_s: float) -> float:
        """When to come again: how long the line takes at the pace of its last grants, within bounds."""
        queue = self._queues.get(model)
        if queue is None or not queue.grants:
            return SHORTEST_ADVICE_S
        per_grant_s = (now_s - queue.grants[0]) / len(queue.grants)
        return min(LONGEST_ADVICE_S, max(SHORTEST_ADVICE_S, per_grant_s * (queue.waiting + 1)))

    def check_invariants(self) -> None:
        """Counts are those of the tickets, and no queue is kept that nobody stands in."""
        waiting = 0
        for model, queue in self._queues.items():
            inside = sum(ticket.waiting for _, _, ticket in queue.heap)
            waiting += inside
            if inside != queue.waiting or queue.granted < 0 or not (inside or queue.granted):
                raise AssertionError(
                    f"line of {model} out of step: {queue.waiting} waiting but {inside} tickets, "
                    f"{queue.granted} granted"
                )
        if waiting != self._waiting:
            raise AssertionError(f"line counts {self._waiting} waiting, its queues {waiting}")

    def _push(self, ticket: Ticket) -> None:
        queue = self._queues.get(ticket.model)
        if queue is None:
            queue = self._queues[ticket.model] = _Queue()
        queue.push(ticket)
        self._waiting += 1
