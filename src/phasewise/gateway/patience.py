"""Notices clients that keep a request waiting: their body does not come, or they do not read their answer.

One look at all of them now and then, instead of a timer for each wait: a wait costs two assignments. What
giving up means is the client's to know (asgi.py).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from phasewise.gateway.asgi import Client
from phasewise.gateway.guard import Guard


@dataclass(frozen=True, slots=True)
class Patience:
    """How long clients may take. Deadlines are kept to within the time between two looks."""

    body_s: float = 30.0
    send_s: float = 60.0
    look_every_s: float = 1.0


class ClientWatch:
    """Knows every client that is being served, and gives up on those that are too slow."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._served: set[Client] = set()

    def __len__(self) -> int:
        return len(self._served)

    def add(self, client: Client) -> None:
        """The client's request has come."""
        self._served.add(client)

    def discard(self, client: Client) -> None:
        """The client's request has ended."""
        self._served.discard(client)

    def look(self, now_s: float) -> None:
        """Give up on whoever has taken too long by now, on the monotonic clock."""
        body_due_s, send_due_s = now_s - self._patience.body_s, now_s - self._patience.send_s
        for client in self._served:
            if client.reading_since_s is not None and client.reading_since_s < body_due_s:
                client.stop_reading()
            elif client.sending_since_s is not None and client.sending_since_s < send_due_s:
                client.give_up()

    async def run(self) -> None:
        """Look until cancelled."""
        guard = Guard("looking at clients")
        while True:
            await asyncio.sleep(self._patience.look_every_s)
            with guard:
                self.look(time.monotonic())
