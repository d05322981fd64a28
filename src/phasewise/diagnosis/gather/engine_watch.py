"""Watches one engine: counters before and after, its steps, or its gauges without a step recorder.

Steps come from its step recorder, or from the requests that it lists.

It only reads. An engine that does not answer is no error: the evidence lists what was not observed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

from phasewise.clients.engine_metrics import fetch_metrics, fetch_page, identify_engine
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.step_feed import ListingFeed, StepFeed
from phasewise.core.engine_metrics import LoadReading, MetricsSnapshot, delta
from phasewise.core.errors import PhasewiseError, UpstreamError
from phasewise.core.steps import EngineStep
from phasewise.diagnosis.gather.target import QUICK
from phasewise.diagnosis.observed.observation import EngineSeen, WatchedEngine

# --- The round trip of an empty request to an engine.
#
# The shortest of several counts, because delays only add to it.

PATHS = ("/version", "/health")
"""Paths that vLLM answers without computing anything, the cheapest first."""
MOST_READINGS = 8
_PATIENCE = Timeouts(connect_s=2.0, head_s=5.0, idle_s=5.0)


class RoundTrip:
    """Round trips to one address over a separate connection."""

    def __init__(self, url: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._client = HttpClient(url, _PATIENCE)
        self._clock = clock
        self._paths = list(PATHS)
        self._readings_s: list[float] = []

    @property
    def shortest_s(self) -> float | None:
        return min(self._readings_s, default=None)

    @property
    def wants_more(self) -> bool:
        """Whether another reading is useful: fewer than enough, and the address answers."""
        return bool(self._paths) and len(self._readings_s) < MOST_READINGS

    async def take(self) -> None:
        """Measure once more. The first exchange opens the connection, which may have been closed."""
        while self._paths:
            try:
                if await self._exchange_s(self._paths[0]) is not None:
                    took_s = await self._exchange_s(self._paths[0])
                    self._readings_s += [] if took_s is None else [took_s]
                    return
            except UpstreamError:
                # Unreachable for now, which says nothing about the round trip.
                return
            del self._paths[0]

    def close(self) -> None:
        """Drop the connection."""
        self._client.close()

    async def _exchange_s(self, path: str) -> float | None:
        began_s = self._clock()
        reply = await self._client.fetch("GET", path)
        return self._clock() - began_s if reply.status == 200 else None


LOOK_BACK_S = 120.0
"""Requests that end in the window may have begun this much before it."""
TICK_S = 0.25
"""How often /metrics is read without a step record: often enough to see a burst and a pause."""
LOAD_EVERY_TICKS = 4
"""The same with a step record, which shows the engine's load by itself."""
STEPS_EVERY_TICKS = 20
"""Often enough that a recorder's ring, some minutes long, never overwrites what was not read."""
LISTED_EVERY_S = 0.05
"""How often listed requests are read: often enough to see most steps, at a small part of an engine's time.
"""
FIRST_TRIP_TICKS = 4
TRIPS_APART = 1.6
"""Round trips are spaced by this growing factor, so that eight of them span a window of 20 s."""
ANSWERS_WITHIN_S = 20.0
"""The timeout of one reading: a slow engine must not delay the window of the others."""


class EngineWatch:
    """Call `begin`, `mark` once all have begun, `follow` until cancelled, then `end`.

    An engine out of reach from here is asked `through` its gateway, if that is given.
    """

    def __init__(self, engine: WatchedEngine, through: HttpClient | None = None) -> None:
        self.engine = engine
        self._through = through
        self._client = HttpClient(engine.url, QUICK)
        self._round_trip = RoundTrip(engine.url)
        self._feed: StepFeed | None = None
        if engine.steps_url is not None:
            self._feed = StepFeed(engine.steps_url, since_unix_s=time.time() - LOOK_BACK_S)
        self._before: MetricsSnapshot | None = None
        self._recorded = False
        self._steps: list[EngineStep] = []
        self._details = False
        self._dropped = 0
        self._loads: list[LoadReading] = []
        self._listing: ListingFeed | None = None

    async def begin(self) -> None:
        """Read the engine's counters and the position of its step record."""
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                self._before = await self._snapshot()
                await self._identify()
                if self._before is None and self._listing is None and self._through is not None:
                    self._client.close()
                    self._client, self._through = self._through, None
                    self._before = await self._snapshot()
                    await self._identify()
                await self._poll()
                await self._round_trip.take()
        except TimeoutError:
            return

    async def mark(self) -> None:
        """Read its counters again, if it has any: the window opens now, not at the first reading."""
        if self._before is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                self._before = await self._snapshot() or self._before

    async def follow(self) -> None:
        """Read steps, or gauges without steps, at intervals until cancelled."""
        if self._before is None and not self._recorded:
            return
        next_trip = FIRST_TRIP_TICKS
        while self._listing is not None:
            await self._read_load()
            await self._poll()
            await asyncio.sleep(LISTED_EVERY_S)
        for tick in count():
            if not self._recorded or tick % LOAD_EVERY_TICKS == 0:
                await self._read_load()
            if self._recorded and tick % STEPS_EVERY_TICKS == STEPS_EVERY_TICKS - 1:
                await self._poll()
            if tick >= next_trip and self._round_trip.wants_more:
                await self._round_trip.take()
                # At growing intervals, because the length of the window is unknown.
                next_trip = max(tick + 1, round(TRIPS_APART * tick))
            await asyncio.sleep(TICK_S)

    @property
    def is_busy(self) -> bool:
        """Whether the engine had requests at the last reading."""
        if self._listing is not None and self._steps:
            return self._steps[-1].leaves_work
        return bool(self._loads) and self._loads[-1].running + self._loads[-1].waiting > 0

    @property
    def ended_requests(self) -> float:
        """How many requests ended since the first reading; 0 if it does not count them."""
        if self._listing is not None:
            return sum(len(step.finished) for step in self._steps)
        counted = [load.finished for load in self._loads if load.finished is not None]
        return counted[-1] - counted[0] if counted else 0.0

    async def end(self) -> EngineSeen:
        """Read what is left, and return everything that was seen."""
        after = None
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await self._poll()
                after = await self._snapshot()
        return EngineSeen(
            engine=self.engine,
            metrics=None if self._before is None or after is None else delta(self._before, after),
            steps=tuple(self._steps),
            details=self._details,
            dropped=self._dropped,
            loads=tuple(self._loads),
            round_trip_s=self._round_trip.shortest_s,
            recorded=self._recorded,
        )

    def close(self) -> None:
        """Drop every connection."""
        self._client.close()
        self._round_trip.close()
        if self._feed is not None:
            self._feed.close()

    async def _snapshot(self) -> MetricsSnapshot | None:
        try:
            return await fetch_metrics(self._client)
        except UpstreamError:
            # The gateway may reach an engine that we cannot, or the engine may have died.
            return None

    async def _read_load(self) -> None:
        try:
            load = (await fetch_page(self._client)).load
        except UpstreamError:
            return
        if load is not None:
            self._loads.append(load)

    async def _identify(self) -> None:
        """Find out the engine's kind; one that lists its requests needs no step recorder."""
        with suppress(UpstreamError):
            kind = await identify_engine(self._client)
            self.engine = replace(self.engine, kind="" if kind is None else kind.TITLE)
            if kind is not None and kind.LISTING_PATH is not None:
                self._listing, self._feed = ListingFeed(self._client, kind), None
                # The first listing needs to know who waits already.
                await self._read_load()

    async def _poll(self) -> None:
        if self._listing is not None:
            steps = await self._listing.poll(self._loads[-1].waiting if self._loads else None)
            self._recorded = self._details = self._recorded or steps is not None
            self._listing = self._listing if self._recorded else None
            self._steps += steps or ()
        if self._feed is None:
            return
        try:
            batch = await self._feed.poll()
        except PhasewiseError:
            # A stock engine has no recorder; one that answered before is retried.
            if not self._recorded:
                self._feed.close()
                self._feed = None
            return
        self._recorded = True
        if batch.restarted:
            self._steps.clear()
        self._steps += batch.steps
        self._details, self._dropped = batch.details, self._dropped + batch.dropped
