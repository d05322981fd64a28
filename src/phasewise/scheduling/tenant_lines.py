"""The tickets of waiting requests, a line for each tenant, and which line is next.

Every tenant gets a share of the work by its weight, in tokens: what one was served counts against it, as in
deficit round robin. It is kept as one sum per tenant instead of rounds, so that priorities and slots in use
can be weighed in the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

SPARE = 64
"""How many tickets that have left a line may stay in it besides as many as wait."""


class Tenant(NamedTuple):
    """Whose requests share a line, and the weight of its share."""

    name: str = "default"
    weight: float = 1.0


@dataclass(slots=True, eq=False)
class Ticket:
    """A position in the queue. `on_grant` is called once, when a slot is granted; the driver sets it.

    It must not call into a flow, because it runs in the middle of another flow's step.
    """

    number: int
    model: str
    priority: int
    since_s: float
    order_s: float
    tenant: Tenant
    work: float
    waiting: bool = True
    granted: bool = False
    on_grant: Callable[[], None] | None = None


@dataclass(slots=True, eq=False)
class _TenantLine:
    """One tenant's tickets. A ticket that left is removed when it reaches the heap's top, or in bulk.

    `served` is the work that its granted tickets stand for, by its weight: the line with the least is next.
    """

    _heap: list[tuple[float, int, Ticket]] = field(default_factory=list)
    waiting: int = 0
    granted: int = 0
    granted_s: float = 0.0
    served: float = 0.0
    weight: float = 1.0

    def push(self, ticket: Ticket) -> None:
        heappush(self._heap, (ticket.order_s, ticket.number, ticket))
        self.waiting += 1
        self.weight = ticket.tenant.weight

    @property
    def head(self) -> Ticket:
        while not (ticket := self._heap[0][2]).waiting:
            heappop(self._heap)
        return ticket

    def pop(self, now_s: float) -> Ticket:
        ticket = self.head
        heappop(self._heap)
        ticket.waiting, ticket.granted = False, True
        self.waiting -= 1
        self.granted += 1
        self.granted_s = now_s
        self.served += ticket.work / self.weight
        return ticket

    def forget_one(self) -> None:
        """One waiting ticket has left."""
        self.waiting -= 1
        if len(self._heap) > 2 * self.waiting + SPARE:
            self._heap = [entry for entry in self._heap if entry[2].waiting]
            heapify(self._heap)

    def check_invariants(self) -> None:
        inside = sum(ticket.waiting for _, _, ticket in self._heap)
        if inside != self.waiting or self.granted < 0:
            raise AssertionError(
                f"queue out of step: {self.waiting} waiting but {inside} tickets, {self.granted} granted"
            )


@dataclass(slots=True, eq=False)
class ModelQueue:
    """The lines of one model. A line that forms again begins at the work that the others were served, so
    that no tenant saves up for later.
    """

    lines: dict[str, _TenantLine] = field(default_factory=dict)
    waiting: int = 0
    granted: int = 0
    _served: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether no ticket waits or is granted."""
        return not self.waiting and not self.granted

    def push(self, ticket: Ticket) -> None:
        """A ticket joins its tenant's line."""
        line = self.lines.get(ticket.tenant.name)
        if line is None:
            line = self.lines[ticket.tenant.name] = _TenantLine()
        if not line.waiting and not line.granted:
            line.served = max(line.served, self._served)
        line.push(ticket)
        self.waiting += 1

    def pop(self, free_slots: int, holders: Mapping[str, Holder], aging_s: float, now_s: float) -> Ticket:
        """Grant the next ticket; some line has one."""
        lines = [(name, line) for name, line in self.lines.items() if line.waiting]
        line = lines[0][1] if len(lines) == 1 else _next_line(lines, free_slots, holders, aging_s, now_s)
        self._served = max(self._served, line.served)
        self.waiting -= 1
        self.granted += 1
        return line.pop(now_s)

    def leave(self, ticket: Ticket) -> None:
        """A ticket's flow goes on, granted or not."""
        line = self.lines[ticket.tenant.name]
        if ticket.granted:
            line.granted -= 1
            self.granted -= 1
        else:
            ticket.waiting = False
            self.waiting -= 1
            line.forget_one()
        if not line.waiting and not line.granted and line.served <= self._served:
            # Otherwise it is kept: a tenant that was served ahead must not begin again at the others' sum.
            del self.lines[ticket.tenant.name]

    def check_invariants(self) -> None:
        """The counts match the lines."""
        for line in self.lines.values():
            line.check_invariants()
        waiting, granted = (
            sum(getattr(line, name) for line in self.lines.values()) for name in ("waiting", "granted")
        )
        if (waiting, granted) != (self.waiting, self.granted):
            raise AssertionError(f"queue out of step: {self.waiting} waiting but {waiting} in its lines")


def _next_line(
    lines: Sequence[tuple[str, _TenantLine]],
    free_slots: int,
    holders: Mapping[str, Holder],
    aging_s: float,
    now_s: float,
) -> _TenantLine:
    """The line of the highest priority; of several the one that was served least.

    A line that holds more than its share of the slots comes after the others. One of lower priority rises
    while none of its tickets is granted, but never above the highest.
    """
    weights = {name: holder.weight for name, holder in holders.items()}
    weights |= {name: line.weight for name, line in lines}
    slots = free_slots + sum(holder.slots for holder in holders.values())
    each = slots / sum(weights.values())
    within = [
        line
        for name, line in lines
        if (holders[name].slots if name in holders else 0) + line.granted < max(1.0, each * line.weight)
    ]
    candidates = within or [line for _, line in lines]
    highest = max(line.head.priority for line in candidates)

    def rank(line: _TenantLine) -> tuple[float, float, float]:
        head = line.head
        waited_s = now_s - max(head.since_s, line.granted_s)
        return -min(highest, head.priority + waited_s // aging_s), line.served, head.order_s

    return min(candidates, key=rank)


@dataclass(slots=True)
class Holder:
    """A tenant with requests on workers."""

    slots: int
    weight: float
