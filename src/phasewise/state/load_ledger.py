"""The work placed on each worker and not yet finished. Written by request_flow only."""

from __future__ import annotations

from collections.abc import Mapping

from phasewise.model.noun import noun
from phasewise.model.worker import WorkerRef


@noun
class Load:
    """Work under way on one worker.

    `unread_tokens` are those of prompts whose answer has not begun, `streams` the answers being written.
    """

    requests: int = 0
    tokens: int = 0
    unread_tokens: int = 0
    streams: int = 0


IDLE = Load()


@noun
class Booking:
    """A claim on a worker, to be released exactly once."""

    number: int
    worker: WorkerRef
    tokens: int


class LoadLedger:
    """Books work on workers and takes it off again."""

    def __init__(self) -> None:
        self._open: dict[int, Booking] = {}
        self._loads: dict[WorkerRef, Load] = {}
        self._next_number = 0

    def book(self, worker: WorkerRef, tokens: int) -> Booking:
        """Claim `tokens` of work on a worker."""
        booking = Booking(self._next_number, worker, tokens)
        self._next_number += 1
        self._open[booking.number] = booking
        load = self.load(worker)
        self._loads[worker] = Load(load.requests + 1, load.tokens + tokens)
        return booking

    def release(self, booking: Booking) -> None:
        """Take a claim off; a second release of the same claim is a mistake of the caller."""
        del self._open[booking.number]
        load = self._loads[booking.worker]
        if load.requests == 1:
            del self._loads[booking.worker]
        else:
            self._loads[booking.worker] = Load(load.requests - 1, load.tokens - booking.tokens)

    @property
    def loads(self) -> Mapping[WorkerRef, Load]:
        """What is under way on the workers that have anything: for reading, by who must ask for many."""
        return self._loads

    def load(self, worker: WorkerRef) -> Load:
        """What is under way on a worker."""
        return self._loads.get(worker, IDLE)

    @property
    def total_requests(self) -> int:
        """Requests under way over all workers."""
        return len(self._open)

    def check_invariants(self) -> None:
        """The sums are those of the open bookings."""
        sums: dict[WorkerRef, Load] = {}
        for booking in self._open.values():
            load = sums.get(booking.worker, IDLE)
            sums[booking.worker] = Load(load.requests + 1, load.tokens + booking.tokens)
        if sums != self._loads:
            raise AssertionError(f"ledger out of step: {self._loads} but bookings say {sums}")
