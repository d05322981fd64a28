"""One request while it is being served, and how it ended: what the parts of the driver hand to each other."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.gateway.answer import Answer
from phasewise.gateway.asgi import Client, Headers
from phasewise.gateway.cache_turn import CacheTurn
from phasewise.gateway.flights import Flight
from phasewise.gateway.resumption import Resumption
from phasewise.gateway.timeline_builder import TimelineBuilder
from phasewise.model.decision import RejectReason
from phasewise.model.timeline import Outcome


@dataclass(slots=True)
class Call:
    """One request while it is being served. `reply_headers` stand in every answer to it.

    `resumption` is how its answer goes on elsewhere, once it broke off where that is possible; `wants_timing`
    is whether the client asked to be told where the time went. `cache` is None where there is no cache.
    `leads`: others may wait for its answer; `follows`: it waits for that of another.
    """

    path: str
    body: bytes
    request_id: str
    hide_usage: bool
    client: Client
    timeline: TimelineBuilder
    reply_headers: Headers
    resumption: Resumption | None = None
    wants_timing: bool = False
    cache: CacheTurn | None = None
    leads: Flight | None = None
    follows: Flight | None = None

    def note_whole(self, answer: Answer) -> None:
        """All of the answer has come; who waits for it beside the client need not wait for the client."""
        answer.complete = True
        if self.leads is not None:
            self.leads.end()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended, for its timeline."""

    outcome: Outcome
    reason: str | None = None


SERVED = Ending(Outcome.SUCCEEDED)
CLIENT_LEFT = Ending(Outcome.CANCELLED, "client_left")
CLIENT_STALLED = Ending(Outcome.CANCELLED, "client_stalled")
STOPPED = Ending(Outcome.CANCELLED, RejectReason.GATEWAY_STOPPED)
