"""Requests that wait for room on a worker, by model: bounded, and in the order of their aged priorities.

Written by request_flow only. When there is room, and how long a request may wait, is the flow's to know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

RATE_OVER_GRANTS = 64
"""How fast the line moves is told from the last so many grants."""


class Ticket:
    """A place in the line. `on_grant` is called once, when its turn has come; a driver sets it."""

    __slots__ = ("granted", "joined_s", "model", "number", "on_grant", "priority")

    def __init__(self, number: int, model: str, priority: int, joined_s: float) -> None:
        self.number = number
        self.model = model
        self.priority = priority
        self.joined_s = joined_s
        self.granted = False
        self.on_grant: Callable[[], None] | None = None


class WaitingLine:
    """Tickets in the order in which they are granted.

    A ticket's priority grows by one for every `aging_s` it waits, so that nothing waits for ever.
    """

    def __init__(self, capacity: int = 1_000, aging_s: float = 5.0) -> None:
        self._capacity = capacity
        self._aging_s = aging_s
        self._waiting: dict[str, list[Ticket]] = {}
        self._granted: dict[str, int] = {}
        self._grants: dict[str, deque[float]] = {}
        self._next_number = 0

    def __len__(self) -> int:
        """How many wait, those granted and not yet gone not counted."""
        return sum(map(len, self._waiting.values()))

    @property
    def models(self) -> Iterable[str]:
        """The models that somebody waits for."""
        return tuple(self._waiting)

    def is_waiting(self, model: str) -> bool:
        """Whether somebody waits for the model, or has been granted room and not yet used it."""
        return model in self._waiting or model in self._granted

    def join(self, model: str, priority: int, joined_s: float) -> Ticket | None:
        """A place in the line; None if it is full."""
        if len(self) >= self._capacity:
            return None
        ticket = Ticket(self._next_number, model, priority, joined_s)
        self._next_number += 1
        self._waiting.setdefault(model, []).append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The ticket's flow goes on, granted or not; room that it was granted is free again."""
        if ticket.granted:
            self._granted[ticket.model] -= 1
            if not self._granted[ticket.model]:
                del self._granted[ticket.model]
            return
        waiting = self._waiting[ticket.model]
        waiting.remove(ticket)
        if not waiting:
            del self._waiting[ticket.model]

    def grant(self, model: str, room: int, now_s: float) -> None:
        """Grant tickets while the room lasts that was not granted before."""
        waiting = self._waiting.get(model)
        while waiting and self._granted.get(model, 0) < room:
            ticket = min(waiting, key=self._turn)
            waiting.remove(ticket)
            self._granted[model] = self._granted.get(model, 0) + 1
            self._grants.setdefault(model, deque(maxlen=RATE_OVER_GRANTS)).append(now_s)
            ticket.granted = True
            if ticket.on_grant is not None:
                ticket.on_grant()
        if waiting is not None and not waiting:
            del self._waiting[model]

    def expected_wait_s(self, model: str) -> float:
        """How long the line takes at the pace of its last grants."""
        grants = self._grants.get(model)
        if grants is None or len(grants) < 2 or grants[-1] <= grants[0]:
            return 1.0
        per_grant_s = (grants[-1] - grants[0]) / (len(grants) - 1)
        return max(1.0, per_grant_s * (len(self._waiting.get(model, ())) + 1))

    def _turn(self, ticket: Ticket) -> tuple[float, int]:
        # Waiting for aging_s counts as one more of priority, so that the order of two tickets never changes.
        return ticket.joined_s - ticket.priority * self._aging_s, ticket.number

    def check_invariants(self) -> None:
        """No list is empty, and nothing granted still waits."""
        if any(not waiting for waiting in self._waiting.values()):
            raise AssertionError("an empty line is kept")
        if any(ticket.granted for waiting in self._waiting.values() for ticket in waiting):
            raise AssertionError("a granted ticket still waits")
        if any(count <= 0 for count in self._granted.values()):
            raise AssertionError(f"grants out of step: {self._granted}")
