"""One engine under watch: counters before and after, its steps as they come, its gauges where it has none.

It only reads, and an engine that does not answer is no error: what that hides is said in the evidence.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.round_trip import RoundTrip
from phasewise.adapters.step_feed import StepFeed
from phasewise.adapters.vllm_load import fetch_load
from phasewise.adapters.vllm_metrics import MetricsDelta, MetricsSnapshot, delta, fetch_metrics
from phasewise.diagnosis.surroundings import LoadReading
from phasewise.errors import PhasewiseError, UpstreamError
from phasewise.model.steps import EngineStep
from phasewise.observe.target import QUICK, WatchedEngine

LOOK_BACK_S = 120.0
"""Requests that end in the window may have begun this much before it."""
TICK_S = 1.0
"""How often gauges are read where no step record tells more."""
STEPS_EVERY_TICKS = 5
"""Often enough that a recorder's ring, some minutes long, never overwrites what was not read."""
TRIPS_APART = 1.6
"""Eight round trips, each so many times as late as the one before, reach over a usual window of 20 s."""
ANSWERS_WITHIN_S = 20.0
"""An engine that takes longer to tell of itself is done without: the others' window must not wait for it."""


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """What was seen of one engine. `metrics` is None if it did not answer at both ends of the window.

    `recorded` tells whether a step recorder answered, `details` whether its steps carry token counts,
    `dropped` how many were overwritten before we came.
    """

    engine: WatchedEngine
    metrics: MetricsDelta | None
    steps: tuple[EngineStep, ...]
    details: bool
    dropped: int
    loads: tuple[LoadReading, ...]
    round_trip_s: float | None
    recorded: bool = False


class EngineWatch:
    """`begin`, `mark` once all have begun, `follow` until told to stop, `end`."""

    def __init__(self, engine: WatchedEngine) -> None:
        self.engine = engine
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

    async def begin(self) -> None:
        """Note where its counters and its step record stand."""
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                self._before = await self._snapshot()
                await self._poll()
                await self._round_trip.take()
        except TimeoutError:
            return

    async def mark(self) -> None:
        """Note its counters anew, if it has any: the window opens now, not when we first asked it."""
        if self._before is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                self._before = await self._snapshot() or self._before

    async def follow(self) -> None:
        """Read on, tick by tick, until cancelled: steps now and then, gauges where there are no steps."""
        if self._before is None and not self._recorded:
            return
        next_trip = 1
        for tick in count():
            if not self._recorded:
                await self._read_load()
            elif tick % STEPS_EVERY_TICKS == STEPS_EVERY_TICKS - 1:
                await self._poll()
            if tick >= next_trip and self._round_trip.wants_more:
                await self._round_trip.take()
                # Ever wider apart, since nobody knows how long the window will be.
                next_trip = max(tick + 1, round(TRIPS_APART * tick))
            await asyncio.sleep(TICK_S)

    async def end(self) -> EngineSeen:
        """Read what came since, and give out all there is."""
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
            # An engine may be out of our reach though not out of the gateway's, or have died meanwhile.
            return None

    async def _read_load(self) -> None:
        try:
            load = await fetch_load(self._client)
        except UpstreamError:
            return
        if load is not None:
            self._loads.append(load)

    async def _poll(self) -> None:
        if self._feed is None:
            return
        try:
            batch = await self._feed.poll()
        except PhasewiseError:
            # A stock engine has no recorder; one that answered before may answer again.
            if not self._recorded:
                self._feed.close()
                self._feed = None
            return
        self._recorded = True
        if batch.restarted:
            self._steps.clear()
        self._steps += batch.steps
        self._details, self._dropped = batch.details, self._dropped + batch.dropped
