"""The work placed on each worker and not yet finished. Written by request_flow only."""

from __future__ import annotations

from collections.abc import Mapping

from phasewise.model.noun import noun
from phasewise.model.worker import WorkerRef


@noun
class Load:
    """Work under way on one worker.

    `tokens` are still to be computed: `unread_tokens` of prompts whose answer has not begun, and what answers
    may come to. `unread_requests` is how many prompts are still read here, `streams` the answers being
    written; a request that is neither has its prompt read elsewhere.
    """

    requests: int = 0
    tokens: int = 0
    unread_tokens: int = 0
    streams: int = 0
    unread_requests: int = 0


IDLE = Load()


class Booking:
    """A claim on a worker, to be released exactly once. Only the ledger changes it.

    `read_alone`: from its beginning until its answer began there was no other prompt to read on the worker,
    so that what its reading took is its own.
    """

    __slots__ = ("answering", "number", "read_alone", "tokens", "unread_tokens", "worker")

    def __init__(self, number: int, worker: WorkerRef, tokens: int, unread_tokens: int) -> None:
        self.number = number
        self.worker = worker
        self.tokens = tokens
        self.unread_tokens = unread_tokens
        self.answering = False
        self.read_alone = False


class LoadLedger:
    """Books work on workers and takes it off again."""

    def __init__(self) -> None:
        self._open: dict[int, Booking] = {}
        self._loads: dict[WorkerRef, Load] = {}
        self._alone: dict[WorkerRef, Booking] = {}
        self._next_number = 0

    def book(self, worker: WorkerRef, tokens: int, unread_tokens: int = 0) -> Booking:
        """Claim `tokens` of work on a worker, of which `unread_tokens` are read before it answers."""
        booking = Booking(self._next_number, worker, tokens, unread_tokens)
        self._next_number += 1
        self._open[booking.number] = booking
        load = self._loads.get(worker, IDLE)
        if unread_tokens:
            self._note_reader(booking, load)
        self._loads[worker] = Load(
            load.requests + 1,
            load.tokens + tokens,
            load.unread_tokens + unread_tokens,
            load.streams,
            load.unread_requests + (unread_tokens > 0),
        )
        return booking

    def answering(self, booking: Booking) -> None:
        """The prompt has been read and the answer has begun; told again, or too late, it changes nothing."""
        if booking.answering or booking.number not in self._open:
            return
        booking.answering = True
        self._forget_reader(booking)
        load = self._loads[booking.worker]
        read = booking.unread_tokens
        self._loads[booking.worker] = Load(
            load.requests,
            load.tokens - read,
            load.unread_tokens - read,
            load.streams + 1,
            load.unread_requests - (read > 0),
        )

    def release(self, booking: Booking) -> None:
        """Take a claim off; a second release of the same claim is a mistake of the caller."""
        del self._open[booking.number]
        self._forget_reader(booking)
        load = self._loads[booking.worker]
        if load.requests == 1:
            del self._loads[booking.worker]
        else:
            unread = 0 if booking.answering else booking.unread_tokens
            read = booking.unread_tokens - unread
            self._loads[booking.worker] = Load(
                load.requests - 1,
                load.tokens - booking.tokens + read,
                load.unread_tokens - unread,
                load.streams - booking.answering,
                load.unread_requests - (unread > 0),
            )

    @property
    def loads(self) -> Mapping[WorkerRef, Load]:
        """What is under way on the workers that have anything: for reading, by who must ask for many."""
        return self._loads

    def load(self, worker: WorkerRef) -> Load:
        """What is under way on a worker."""
        return self._loads.get(worker, IDLE)

    @property
    def total_requests(self) -> int:
        """Claims over all workers; a request has two while one worker reads it for another."""
        return len(self._open)

    def check_invariants(self) -> None:
        """The sums are those of the open bookings, and who reads alone is the only one to read."""
        sums: dict[WorkerRef, Load] = {}
        for it in self._open.values():
            load = sums.get(it.worker, IDLE)
            unread = 0 if it.answering else it.unread_tokens
            sums[it.worker] = Load(
                load.requests + 1,
                load.tokens + it.tokens - it.unread_tokens + unread,
                load.unread_tokens + unread,
                load.streams + it.answering,
                load.unread_requests + (unread > 0),
            )
        if sums != self._loads:
            raise AssertionError(f"ledger out of step: {self._loads} but bookings say {sums}")
        for worker, it in self._alone.items():
            if not it.read_alone or sums[worker].unread_tokens != it.unread_tokens:
                raise AssertionError(f"booking {it.number} does not read alone on {worker.name}")

    def _note_reader(self, booking: Booking, load: Load) -> None:
        if not load.unread_tokens:
            booking.read_alone = True
            self._alone[booking.worker] = booking
        elif (disturbed := self._alone.pop(booking.worker, None)) is not None:
            disturbed.read_alone = False

    def _forget_reader(self, booking: Booking) -> None:
        if self._alone.get(booking.worker) is booking:
            del self._alone[booking.worker]
