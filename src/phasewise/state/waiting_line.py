"""Requests that wait for room on a worker, by model: bounded, and in the order of their aged priorities.

Written by request_flow only. When there is room, and how long a request may wait, is the flow's to know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

PACE_OVER_GRANTS = 64
"""How fast a line moves is told from the last so many grants."""
SHARE_OF_RETURNED = 0.5
"""The part of the line's pace that those are told to share who were turned away; newcomers have the rest."""
SOONEST_RETURN_S = 1.0
LATEST_RETURN_S = 600.0
"""A bound that a long overload reaches makes those who reached it return together: it has to be far away."""


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
        """One of those who wait has left."""
        self.waiting -= 1
        if len(self._heap) > 2 * self.waiting + PACE_OVER_GRANTS:
            self._heap = [entry for entry in self._heap if entry[2].waiting]
            heapify(self._heap)

    def check_invariants(self) -> None:
        inside = sum(ticket.waiting for _, _, ticket in self._heap)
        if inside != self.waiting or self.granted < 0:
            raise AssertionError(
                f"line out of step: {self.waiting} waiting but {inside} tickets, {self.granted} granted"
            )


class _Pace:
    """How fast a line moves, and how many it has told to come back."""

    __slots__ = ("_began_s", "_grants", "_told_s", "_yet_to_return")

    def __init__(self) -> None:
        self._grants: deque[float] = deque(maxlen=PACE_OVER_GRANTS)
        self._yet_to_return = 0.0
        self._began_s = self._told_s = 0.0

    def begin(self, now_s: float) -> None:
        """The line forms anew: who came back meanwhile found room, and what was granted is long ago."""
        self._grants.clear()
        self._yet_to_return = 0.0
        self._began_s = self._told_s = now_s

    def granted(self, now_s: float) -> None:
        self._grants.append(now_s)

    def return_after_s(self, waiting: int, now_s: float) -> float:
        """When the line would come to one more, if all who were turned away came back in that order.

        Told the same short time, all of them would be back at once and leave no room for newcomers.
        """
        returning_per_s = SHARE_OF_RETURNED * self._per_s(waiting, now_s)
        returned = returning_per_s * (now_s - self._told_s)
        self._yet_to_return = max(0.0, self._yet_to_return - returned) + 1.0
        self._told_s = now_s
        after_s = (waiting + self._yet_to_return) / returning_per_s
        return min(LATEST_RETURN_S, max(SOONEST_RETURN_S, after_s))

    def _per_s(self, waiting: int, now_s: float) -> float:
        if self._grants and now_s > self._grants[0]:
            return len(self._grants) / (now_s - self._grants[0])
        # Nothing has moved yet. A line that has stood for so long is taken to need as long again: who is
        # turned away comes back later the longer it stands, one after the other.
        return max(1, waiting) / max(SOONEST_RETURN_S, now_s - self._began_s)


class WaitingLine:
    """Tickets in the order in which they are granted.

    A ticket's priority grows by one for every `aging_s` it waits, so that nothing waits for ever.
    """

    def __init__(self, capacity: int = 1_000, aging_s: float = 5.0) -> None:
        self._capacity = capacity
        self._aging_s = aging_s
        self._queues: dict[str, _Queue] = {}
        self._paces: dict[str, _Pace] = {}
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

    def join(
        self, model: str, priority: int, since_s: float, now_s: float, *, even_if_full: bool = False
    ) -> Ticket | None:
        """A place in the line for a request that waits since then; None if the line is full."""
        if self._waiting >= self._capacity and not even_if_full:
            return None
        # Waiting for aging_s counts as one more of priority, so the order of two tickets never changes.
        ticket = Ticket(self._next_number, model, since_s - priority * self._aging_s)
        self._next_number += 1
        self._push(ticket, now_s)
        return ticket

    def rejoin(self, ticket: Ticket, now_s: float) -> Ticket:
        """Its old place again, for a ticket that left granted and found the room gone."""
        again = Ticket(ticket.number, ticket.model, ticket.order_s)
        self._push(again, now_s)
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
        if queue.empty:
            del self._queues[ticket.model]

    def grant(self, model: str, room: int, now_s: float) -> None:
        """Grant tickets while the room lasts that was not granted before."""
        queue = self._queues.get(model)
        while queue is not None and queue.waiting and queue.granted < room:
            ticket = queue.pop()
            ticket.waiting, ticket.granted = False, True
            self._waiting -= 1
            queue.granted += 1
            self._paces[model].granted(now_s)
            if ticket.on_grant is not None:
                ticket.on_grant()

    def turn_away(self, model: str, now_s: float) -> float:
        """After how long a request that found no room should come again."""
        pace, queue = self._paces.get(model), self._queues.get(model)
        if pace is None:
            return SOONEST_RETURN_S
        return pace.return_after_s(0 if queue is None else queue.waiting, now_s)

    def check_invariants(self) -> None:
        """Counts are those of the tickets, and no queue is kept that nobody stands in."""
        for model, queue in self._queues.items():
            queue.check_invariants()
            if queue.empty:
                raise AssertionError(f"the empty line of {model} is kept")
        if self._waiting != sum(queue.waiting for queue in self._queues.values()):
            raise AssertionError(f"line out of step: {self._waiting} waiting over all")

    def _push(self, ticket: Ticket, now_s: float) -> None:
        queue = self._queues.get(ticket.model)
        if queue is None:
            queue = self._queues[ticket.model] = _Queue()
            self._paces.setdefault(ticket.model, _Pace()).begin(now_s)
        queue.push(ticket)
        self._waiting += 1
