"""One request while it is being served, its ending, and all open requests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from phasewise.core.decision import RejectReason
from phasewise.core.ports import Lease
from phasewise.core.timeline import Outcome
from phasewise.core.timeline_record import encode
from phasewise.gateway.answer_cache.lookup import CacheLookup
from phasewise.gateway.answer_cache.single_flight import Flight
from phasewise.gateway.records.timeline_builder import TimelineBuilder
from phasewise.gateway.server.client import Client, Headers
from phasewise.gateway.upstream.response import Answer
from phasewise.gateway.upstream.resumption import Resumption


@dataclass(slots=True)
class Reservation:
    """What one request holds. `lease` is None for keys without limits, and once the flow has it."""

    body_bytes: int = 0
    lease: Lease | None = None
    tenant: str = ""


@dataclass(slots=True)
class Call:
    """One request while it is being served. Every answer to it has `reply_headers`.

    `resumption` says how another worker resumes its answer, once it broke off. `wants_timing`: the client
    asked for the timing comment. `cache` is None without a cache. `leads`: identical requests may follow its
    answer; `follows`: it follows another's.
    """

    path: str
    body: bytes
    request_id: str
    hide_usage: bool
    client: Client
    timeline: TimelineBuilder
    reply_headers: Headers
    reservation: Reservation
    resumption: Resumption | None = None
    wants_timing: bool = False
    cache: CacheLookup | None = None
    leads: Flight | None = None
    follows: Flight | None = None
    method: str = "POST"
    content_type: bytes = b"application/json"

    @property
    def typed(self) -> bool:
        """Whether the events of its stream name their type."""
        return not self.timeline.request.endpoint.is_completion

    def note_whole(self, answer: Answer) -> None:
        """The answer is complete; followers need not wait for this client to read it."""
        answer.complete = True
        if self.leads is not None:
            self.leads.end()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended, for its timeline."""

    outcome: Outcome
    reason: str | None = None
    note: str | None = None


SERVED = Ending(Outcome.SUCCEEDED)
CLIENT_LEFT = Ending(Outcome.CANCELLED, "client_left")
CLIENT_STALLED = Ending(Outcome.CANCELLED, "client_stalled")
STOPPED = Ending(Outcome.CANCELLED, RejectReason.GATEWAY_STOPPED)


# --- The requests that have not ended; the timeline store has the others.


class OpenRequests:
    """Every request between being read and being answered; only the pipeline writes it."""

    def __init__(self) -> None:
        # In the order in which they came, which a dict keeps.
        self._calls: dict[str, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """The request has begun."""
        self._calls[call.request_id] = call

    def discard(self, call: Call) -> None:
        """The request has ended."""
        self._calls.pop(call.request_id, None)

    def oldest(self, limit: int) -> list[str]:
        """The ids of those that have been open longest, oldest first."""
        return list(islice(self._calls, limit))

    def calls(self, limit: int) -> list[Call]:
        """Those that have been open longest, oldest first."""
        return list(islice(self._calls.values(), limit))

    def line(self, request_id: str, now_s: float) -> bytes | None:
        """The timeline so far of one request, as JSON; None if it has ended."""
        call = self._calls.get(request_id)
        if call is None:
            return None
        return encode(call.timeline.so_far(now_s, call.client.blocked_until(now_s)))
