"""How long an empty request takes to an engine and back: the part of a latency that no engine can mend.

The shortest of several counts, as everything else on the way only adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.errors import UpstreamError

PATHS = ("/version", "/health")
"""What vLLM answers without computing anything, the cheapest first."""
MOST_READINGS = 8
_PATIENCE = Timeouts(connect_s=2.0, head_s=5.0, idle_s=5.0)


class RoundTrip:
    """Readings of one address over a connection of its own, taken now and then."""

    def __init__(self, url: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._client = HttpClient(url, _PATIENCE)
        self._clock = clock
        self._paths = list(PATHS)
        self._readings_s: list[float] = []

    @property
    def shortest_s(self) -> float | None:
        """The shortest way there and back, None if nothing ever answered."""
        return min(self._readings_s, default=None)

    @property
    def wants_more(self) -> bool:
        """Whether another reading would tell more, and somebody answers."""
        return bool(self._paths) and len(self._readings_s) < MOST_READINGS

    async def take(self) -> None:
        """Measure once more. A first exchange opens the connection, which may have closed since the last."""
        while self._paths:
            try:
                if await self._exchange_s(self._paths[0]) is not None:
                    took_s = await self._exchange_s(self._paths[0])
                    self._readings_s += [] if took_s is None else [took_s]
                    return
            except UpstreamError:
                # Out of reach for now: that is not the length of the way.
                return
            del self._paths[0]

    def close(self) -> None:
        """Drop the connection."""
        self._client.close()

    async def _exchange_s(self, path: str) -> float | None:
        began_s = self._clock()
        reply = await self._client.fetch("GET", path)
        return self._clock() - began_s if reply.status == 200 else None
