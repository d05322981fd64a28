"""Answers that are being made, so that who asks the same meanwhile waits for the one under way.

The first to ask leads: its request runs as any other. Those who follow read along in the notes on its answer.
What they are sent of it is found_answers.py's, who may follow whom is said by the key that they come with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from phasewise.gateway.answer import Answer
from phasewise.gateway.asgi import Client

Tap = Callable[[Callable[[], None]], None]
"""Asks to be called whenever something has come of an answer."""


class Flight:
    """One answer under way, and how many wait for it beside the client that it is made for.

    That client may leave: the answer is made to its end as long as somebody follows, and on that client's
    account. `answer` is what has come of it; it is another one once a worker failed and the next took over.
    `waits_since_s` is since when no worker has it, None while one does.
    """

    __slots__ = (
        "_flights",
        "_leader",
        "_tap",
        "_tapped",
        "_waiting",
        "answer",
        "ended",
        "followers",
        "key",
        "model",
        "priority",
        "waits_since_s",
    )

    def __init__(self, flights: Flights, key: str, model: str, leader: Client, priority: int) -> None:
        self._flights = flights
        self.key = key
        self.model = model
        self.priority = priority
        self._leader = leader
        self.answer: Answer | None = None
        self.waits_since_s: float | None = time.monotonic()
        self.ended = False
        self.followers = 0
        self._tap: Tap | None = None
        self._tapped = False
        self._waiting: list[asyncio.Future[None]] = []
        leader.followed = self._is_followed

    # --- the leader's -------------------------------------------------------------------------------------

    def placed(self) -> None:
        """A worker has the request."""
        self.waits_since_s = None

    def lost(self) -> None:
        """The worker failed: the request waits for another, if there is to be one."""
        self.waits_since_s = time.monotonic()
        self.tell()

    def carry(self, answer: Answer, tap: Tap | None = None) -> None:
        """The answer is noted here from now on; where it comes piece by piece, `tap` tells of each."""
        self.answer, self._tap, self._tapped = answer, tap, False
        if self.followers:
            self._listen()

    def end(self) -> None:
        """Nothing more comes, be the answer complete or not."""
        if not self.ended:
            self.ended, self._tap = True, None
            self._leader.followed = None
            self._flights.forget(self)
            self.tell()

    def tell(self) -> None:
        """Something has come."""
        waiting, self._waiting = self._waiting, []
        for it in waiting:
            if not it.done():
                it.set_result(None)

    # --- the followers' -----------------------------------------------------------------------------------

    def join(self) -> None:
        """One more waits for it."""
        self.followers += 1
        self._listen()

    def leave(self) -> None:
        """One less waits for it. The last one to leave an answer whose own client has left ends it."""
        self.followers -= 1
        if not self.followers and not self.ended and self._leader.left:
            self._leader.has_left()

    async def news(self) -> None:
        """Wait until something has come, or nothing more will."""
        if self.ended:
            return
        told = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        await told

    def _listen(self) -> None:
        if self._tap is not None and not self._tapped:
            self._tapped = True
            self._tap(self.tell)

    def _is_followed(self) -> bool:
        return self.followers > 0


class Flights:
    """Every answer that others may wait for, by the key of its request.

    Answers that hold more than text are not shared, so nobody waits for a model whose last one did.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, Flight] = {}
        self._beyond_text: set[str] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    def join(self, key: str, priority: int) -> Flight | None:
        """Follow the answer to this request, if one is under way.

        Nobody stands in line behind those whom it would have passed: one of higher priority follows only an
        answer that has begun.
        """
        flight = self._under_way.get(key)
        if flight is None or flight.model in self._beyond_text:
            return None
        if flight.priority < priority and flight.answer is None:
            return None
        flight.join()
        return flight

    def lead(self, key: str, model: str, client: Client, priority: int) -> Flight | None:
        """Let others follow the answer to this request, unless they follow another one already."""
        if key in self._under_way:
            return None
        flight = self._under_way[key] = Flight(self, key, model, client, priority)
        return flight

    def forget(self, flight: Flight) -> None:
        """An answer is under way no longer."""
        del self._under_way[flight.key]
        answer = flight.answer
        if answer is not None and answer.saw_other_than_text:
            self._beyond_text.add(flight.model)
        elif answer is not None and answer.complete:
            self._beyond_text.discard(flight.model)
