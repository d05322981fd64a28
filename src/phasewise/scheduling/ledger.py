"""The work placed on each worker and not yet finished. Only the flow writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from phasewise.core.decision import Candidate
from phasewise.core.value import value
from phasewise.core.worker import Worker, WorkerRef
from phasewise.scheduling.progress import PromptsBooked


@value
class Load:
    """Work under way on one worker.

    `tokens` are still to be computed: `unread_tokens` of prompts whose answer has not begun, and the expected
    output. `unread_requests` counts prompts still in prefill here, `streams` the answers in decode. A request
    in neither has its prefill on another worker.
    """

    requests: int = 0
    tokens: int = 0
    unread_tokens: int = 0
    streams: int = 0
    unread_requests: int = 0


IDLE = Load()


def candidate(worker: Worker, load: Load) -> Candidate:
    """A worker that could take a request, if it has a free slot."""
    return Candidate(
        worker, load.tokens, load.requests, load.unread_tokens, load.streams, load.unread_requests
    )


@dataclass(slots=True, eq=False)
class Booking:
    """A reservation on a worker, released exactly once. Only the ledger changes it.

    `read_alone`: the worker had no other prompt in prefill until this answer began, so the prefill time is
    this request's own.
    """

    number: int
    worker: WorkerRef
    tokens: int
    unread_tokens: int
    answering: bool = False
    read_alone: bool = False


class Neighbours(Protocol):
    """Other replicas of this gateway, which place requests on the same workers."""

    def booked(self) -> None:
        """This replica's load on a worker has changed."""

    def loads(self) -> Mapping[str, Sequence[int]]:
        """Their loads on the workers that they use, fields of Load from `tokens` on: they have slots of their
        own.
        """

    def served(self, worker: WorkerRef, hashes: Sequence[int], *counts: int) -> None:
        """A worker has computed a prompt: what PrefixIndex.served was called with."""


class LoadLedger:
    """Books work on workers and releases it. With `neighbours` they learn of it."""

    def __init__(self, neighbours: Neighbours | None = None) -> None:
        self._neighbours = neighbours
        self._open: dict[int, Booking] = {}
        self._loads: dict[WorkerRef, Load] = {}
        self._alone: dict[WorkerRef, Booking] = {}
        self._most_read: dict[WorkerRef, tuple[int, int]] = {}
        self._next_number = 0
        # The last workers that were looked at, with their loads: few loads change from one look to the next.
        self._seen: tuple[Worker, ...] = ()
        self._candidates: list[Candidate] = []
        self._places: dict[WorkerRef, int] = {}
        self._full = 0

    def book(self, worker: WorkerRef, tokens: int, unread_tokens: int = 0) -> Booking:
        """Reserve `tokens` of work on a worker, `unread_tokens` of them prefill."""
        booking = Booking(self._next_number, worker, tokens, unread_tokens)
        self._next_number += 1
        self._open[booking.number] = booking
        if unread_tokens:
            self._note_reader(booking, self._loads.get(worker, IDLE))
        self._change(worker, 1, tokens, unread_tokens, 0, unread_tokens > 0)
        return booking

    def answering(self, booking: Booking) -> None:
        """The prefill is done and the answer has begun. A second or late call changes nothing."""
        if booking.answering or booking.number not in self._open:
            return
        booking.answering = True
        self._forget_reader(booking)
        load, read = self._loads[booking.worker], booking.unread_tokens
        unread, longest = self._most_read.get(booking.worker, (0, 0))
        if read > longest or load.unread_tokens > unread:
            self._most_read[booking.worker] = max(unread, load.unread_tokens), max(longest, read)
        self._change(booking.worker, 0, -read, -read, 1, -(read > 0))

    def release(self, booking: Booking) -> None:
        """Release a booking. To release it twice is an error."""
        del self._open[booking.number]
        self._forget_reader(booking)
        unread = 0 if booking.answering else booking.unread_tokens
        tokens = booking.tokens - booking.unread_tokens + unread
        self._change(booking.worker, -1, -tokens, -unread, -booking.answering, -(unread > 0))

    def _change(
        self,
        worker: WorkerRef,
        requests: int,
        tokens: int,
        unread_tokens: int,
        streams: int,
        unread_requests: int,
    ) -> None:
        load = self._loads.get(worker, IDLE)
        if load.requests + requests:
            self._loads[worker] = Load(
                load.requests + requests,
                load.tokens + tokens,
                load.unread_tokens + unread_tokens,
                load.streams + streams,
                load.unread_requests + unread_requests,
            )
        else:
            del self._loads[worker]
        if (place := self._places.get(worker)) is not None:
            before = self._candidates[place]
            after = self._candidates[place] = candidate(before.worker, self._loads.get(worker, IDLE))
            self._full += before.has_slot - after.has_slot
        if self._neighbours is not None:
            self._neighbours.booked()

    def candidates(self, workers: tuple[Worker, ...]) -> list[Candidate]:
        """Those of these workers that have a free slot, with their load from this replica."""
        if workers is not self._seen:
            self._seen = workers
            self._candidates = [candidate(worker, self._loads.get(worker.ref, IDLE)) for worker in workers]
            self._places = {worker.ref: place for place, worker in enumerate(workers)}
            self._full = sum(not candidate.has_slot for candidate in self._candidates)
        if self._full:
            return [candidate for candidate in self._candidates if candidate.has_slot]
        return self._candidates.copy()

    @property
    def loads(self) -> Mapping[WorkerRef, Load]:
        """The load of every worker that has any from this replica. Read-only."""
        return self._loads

    def whole_loads(self) -> Callable[[WorkerRef, Load], Load]:
        """Looks up a worker's load with that from other replicas, by its ref and the load of an idle one."""
        own = self._loads.get
        if self._neighbours is None:
            return own
        others = self._neighbours.loads()
        if not others:
            return own

        def load_of(worker: WorkerRef, idle: Load) -> Load:
            load, other = own(worker, idle), others.get(worker.name)
            if other is None:
                return load
            tokens, unread_tokens, streams, unread_requests = other
            return Load(
                load.requests,
                load.tokens + tokens,
                load.unread_tokens + unread_tokens,
                load.streams + streams,
                load.unread_requests + unread_requests,
            )

        return load_of

    def load(self, worker: WorkerRef) -> Load:
        """The load of one worker from this replica."""
        return self._loads.get(worker, IDLE)

    def prompts(self, worker: WorkerRef) -> PromptsBooked:
        """The prompts that a worker has in prefill. It looks at every booking."""
        own = (
            booking for booking in self._open.values() if booking.worker == worker and not booking.answering
        )
        unread_before, longest_before = self._most_read.get(worker, (0, 0))
        return PromptsBooked(
            self.load(worker).unread_tokens,
            max((booking.unread_tokens for booking in own), default=0),
            unread_before,
            longest_before,
        )

    @property
    def total_requests(self) -> int:
        """Bookings over all workers; a disaggregated request has two during its prefill."""
        return len(self._open)

    def check_invariants(self) -> None:
        """The sums match the open bookings, and a booking that reads alone is its worker's only prefill."""
        sums: dict[WorkerRef, Load] = {}
        for booking in self._open.values():
            load = sums.get(booking.worker, IDLE)
            unread = 0 if booking.answering else booking.unread_tokens
            sums[booking.worker] = Load(
                load.requests + 1,
                load.tokens + booking.tokens - booking.unread_tokens + unread,
                load.unread_tokens + unread,
                load.streams + booking.answering,
                load.unread_requests + (unread > 0),
            )
        if sums != self._loads:
            raise AssertionError(f"ledger out of step: {self._loads} but bookings say {sums}")
        if self._candidates != [
            candidate(worker, self._loads.get(worker.ref, IDLE)) for worker in self._seen
        ]:
            raise AssertionError("candidates out of step with the loads")
        for worker, booking in self._alone.items():
            if not booking.read_alone or sums[worker].unread_tokens != booking.unread_tokens:
                raise AssertionError(f"booking {booking.number} does not read alone on {worker.name}")

    def _note_reader(self, booking: Booking, load: Load) -> None:
        if not load.unread_tokens:
            booking.read_alone = True
            self._alone[booking.worker] = booking
        elif (disturbed := self._alone.pop(booking.worker, None)) is not None:
            disturbed.read_alone = False

    def _forget_reader(self, booking: Booking) -> None:
        if self._alone.get(booking.worker) is booking:
            del self._alone[booking.worker]
