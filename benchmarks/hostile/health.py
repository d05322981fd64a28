"""Asks a gateway for its health all the time, from a thread, and keeps the longest it took to answer."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

EVERY_S = 0.05
GIVE_UP_S = 60.0


@dataclass(slots=True)
class Health:
    """What was seen so far."""

    asked: int = 0
    longest_s: float = 0.0


@contextmanager
def watched(url: str) -> Iterator[Health]:
    """Ask until the block is left."""
    health, stopped = Health(), threading.Event()
    address = urlsplit(url).netloc

    def ask() -> None:
        while not stopped.wait(EVERY_S):
            begun_s = time.monotonic()
            connection = http.client.HTTPConnection(address, timeout=GIVE_UP_S)
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
            except OSError:
                health.longest_s = max(health.longest_s, GIVE_UP_S)
            finally:
                connection.close()
            health.asked += 1
            health.longest_s = max(health.longest_s, time.monotonic() - begun_s)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield health
    finally:
        stopped.set()
        thread.join(GIVE_UP_S)
