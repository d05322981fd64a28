"""Single flight: identical requests share one answer while it is under way.

The first request leads and runs like any other. Followers read its answer as it arrives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from phasewise.gateway.server.client import Client
from phasewise.gateway.upstream.response import Answer

Tap = Callable[[Callable[[], None]], None]
"""Registers a callback for every new part of an answer."""


@dataclass(slots=True, eq=False)
class Flight:
    """One answer under way and its followers.

    If the leader's client leaves, the answer goes on as long as it has followers, and is charged to that
    client. `answer` is the answer so far; a new object replaces it when another worker takes over.
    `waits_since_s` is the time since which no worker has the request, None while one has it.
    """

    key: str
    model: str
    priority: int
    _leader: Client
    _flights: Flights
    answer: Answer | None = None
    waits_since_s: float | None = field(default_factory=time.monotonic)
    ended: bool = False
    followers: int = 0
    _tap: Tap | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._leader.followed = lambda: self.followers > 0

    # --- the leader's -------------------------------------------------------------------------------------

    def placed(self) -> None:
        """A worker has the request."""
        self.waits_since_s = None

    def lost(self) -> None:
        """The worker failed: the request waits for another, if there is another attempt."""
        self.waits_since_s = time.monotonic()
        self._notify()

    def carry(self, answer: Answer, tap: Tap | None = None) -> None:
        """Set the answer under way; for a stream, `tap` reports every new piece."""
        self.answer, self._tap = answer, tap
        self._listen()

    def end(self) -> None:
        """The answer has ended, complete or not."""
        if not self.ended:
            self.ended, self._tap = True, None
            self._leader.followed = None
            self._flights.forget(self)
            self._notify()

    def _listen(self) -> None:
        # Only once there are followers: a stream without them has no such cost.
        if self._tap is not None and self.followers:
            tap, self._tap = self._tap, None
            tap(self._notify)

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- the followers' -----------------------------------------------------------------------------------

    def join(self) -> None:
        """Add a follower."""
        self.followers += 1
        self._listen()

    def leave(self) -> None:
        """Remove a follower. If the leader's client has left, the last follower ends the answer."""
        self.followers -= 1
        if not self.followers and not self.ended and self._leader.left:
            self._leader.has_left()

    async def news(self, arrived_s: float, max_wait_s: float) -> None:
        """Wait for a new piece or the end, of an answer that has not ended.

        Raises TimeoutError if a request that arrived then has waited `max_wait_s` for a worker.
        """
        since_s = self.waits_since_s
        left_s = None
        if since_s is not None:
            left_s = max(0.0, max(since_s, arrived_s) + max_wait_s - time.monotonic())
        try:
            async with asyncio.timeout(left_s):
                await self._news.wait()
        except TimeoutError:
            # In the meantime a worker may have taken the request.
            if self.waits_since_s == since_s:
                raise


class Flights:
    """Every answer under way that may be followed, by the key of its request.

    Answers with more than text are not shared, so requests do not follow a model whose last answer had more.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, Flight] = {}
        self._beyond_text: set[str] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    def join(self, key: str, priority: int) -> Flight | None:
        """Follow the answer to this request, if one is under way.

        A request of higher priority than the leader follows only an answer that has begun: in the queue it
        would overtake the leader.
        """
        flight = self._under_way.get(key)
        if flight is None or flight.model in self._beyond_text:
            return None
        if flight.priority < priority and flight.answer is None:
            return None
        flight.join()
        return flight

    def lead(self, key: str, model: str, client: Client, priority: int) -> Flight | None:
        """Let others follow the answer to this request, unless an identical one leads already."""
        if key in self._under_way:
            return None
        flight = self._under_way[key] = Flight(key, model, priority, client, self)
        return flight

    def forget(self, flight: Flight) -> None:
        """An answer has ended."""
        del self._under_way[flight.key]
        answer = flight.answer
        if answer is not None and answer.saw_other_than_text:
            self._beyond_text.add(flight.model)
        elif answer is not None and answer.complete:
            self._beyond_text.discard(flight.model)
