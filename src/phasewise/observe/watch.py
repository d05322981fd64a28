"""Watches a target for a while: every engine at once, its host where that is here, the gateway's timelines.

It only reads. What the evidence says is left to diagnosis.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import TypeVar

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.timeline_feed import Missed, TimelineFeed
from phasewise.diagnosis.attribution import Logs
from phasewise.diagnosis.engine_view import timelines_from_steps
from phasewise.diagnosis.seen_by import COUNTERS, GATEWAY, PROBE, STEP_RECORD
from phasewise.errors import UpstreamError
from phasewise.model.step_log import logs_by_rank
from phasewise.model.timeline import Timeline
from phasewise.observe.engine_watch import EngineWatch
from phasewise.observe.evidence import Evidence
from phasewise.observe.host_watch import HostWatch
from phasewise.observe.not_known import Gathered, not_known
from phasewise.observe.surroundings import setup_of, surroundings_of
from phasewise.observe.target import QUICK, TargetKind, WatchTarget, admin_headers

AT_ONCE = 32
"""So many engines are asked at the same time: a few slow ones hold up nobody, and open files stay few."""
TIMELINES_EVERY_S = 2.0
"""A gateway keeps 10,000 unless told otherwise: often enough for some thousand requests a second."""

_T = TypeVar("_T")


class Watch:
    """A window over a target: `begin`, let time pass or traffic flow, `end`, all in one event loop."""

    def __init__(self, target: WatchTarget, admin_key: str | None = None) -> None:
        self._target = target
        self._engines = [EngineWatch(engine) for engine in target.engines]
        self._host = HostWatch(target.engines)
        self._client = HttpClient(target.url, QUICK)
        self._gateway: TimelineFeed | None = None
        if target.kind is TargetKind.GATEWAY:
            self._gateway = TimelineFeed(self._client, admin_headers(admin_key))
        self._following: list[asyncio.Task[None]] = []
        self._began_unix_s = 0.0

    async def begin(self) -> None:
        """Note where the counters and the step records stand, and read on from there."""
        await _bounded(engine.begin() for engine in self._engines)
        # An engine that is silent has taken its time by now: the window opens for all of them after it.
        await asyncio.to_thread(self._host.begin)
        await _bounded(engine.mark() for engine in self._engines)
        if self._gateway is not None:
            await self._gateway.skip()
        self._began_unix_s = time.time()
        self._following = [asyncio.create_task(engine.follow()) for engine in self._engines]
        if self._gateway is not None:
            self._following.append(asyncio.create_task(_keep_up_with(self._gateway)))

    async def end(self, probed: tuple[Timeline, ...] = ()) -> Evidence:
        """Gather what happened since `begin`; `probed` are requests that we sent ourselves."""
        await self._stop_following()
        window = (self._began_unix_s, time.time())
        told = () if self._gateway is None else await _with_open(self._gateway)
        hosts = await asyncio.to_thread(self._host.end)
        # Last, since one may be silent; the requests are in, and the steps of all of them have been.
        seen = await _bounded(engine.end() for engine in self._engines)
        logs = {each.engine.name: logs_by_rank(each.steps) for each in seen if each.steps}
        timelines, seen_by = self._timelines(told, probed, logs)
        surroundings = tuple(
            surroundings_of(
                each, hosts.get(each.engine.name), timelines, logs.get(each.engine.name, ()), window
            )
            for each in seen
        )
        missed = Missed() if self._gateway is None else self._gateway.missed
        gathered = Gathered(self._target.kind, seen, timelines, logs, surroundings, bool(probed), missed)
        return Evidence(
            began_unix_s=self._began_unix_s,
            window_s=window[1] - window[0],
            seen_by=seen_by,
            timelines=tuple(it for it in timelines if it.generates and not it.from_cache),
            logs=logs,
            metrics=tuple(each.metrics for each in seen if each.metrics is not None),
            not_known=not_known(gathered),
            surroundings=surroundings,
            setups={each.engine.name: setup_of(each) for each in seen},
        )

    def close(self) -> None:
        """Drop every connection."""
        for task in self._following:
            task.cancel()
        for engine in self._engines:
            engine.close()
        self._client.close()

    async def _stop_following(self) -> None:
        for task in self._following:
            task.cancel()
        for task in self._following:
            with suppress(asyncio.CancelledError):
                await task
        self._following.clear()

    def _timelines(
        self, told: tuple[Timeline, ...], probed: tuple[Timeline, ...], logs: Logs
    ) -> tuple[tuple[Timeline, ...], str]:
        if self._gateway is not None:
            return told, GATEWAY
        if probed:
            return probed, PROBE
        seen = tuple(
            timeline
            for name, ranks in logs.items()
            for log in ranks
            for timeline in timelines_from_steps(log, name, "")
        )
        return self._ended_in_window(seen), STEP_RECORD if seen else COUNTERS

    def _ended_in_window(self, timelines: tuple[Timeline, ...]) -> tuple[Timeline, ...]:
        return tuple(it for it in timelines if it.started_unix_s + it.ended_s >= self._began_unix_s)


async def _keep_up_with(gateway: TimelineFeed) -> None:
    while True:
        await asyncio.sleep(TIMELINES_EVERY_S)
        # What one reading did not get the next one may; the last one, at the window's end, is not forgiven.
        with suppress(UpstreamError):
            await gateway.fetch()


async def _with_open(gateway: TimelineFeed) -> tuple[Timeline, ...]:
    """What has ended and what is under way. Open ones first: one that ends meanwhile is then in both."""
    under_way = await gateway.read_open()
    ended = await gateway.read()
    known = {timeline.request_id for timeline in ended}
    return ended + tuple(timeline for timeline in under_way if timeline.request_id not in known)


async def _bounded(jobs: Iterable[Awaitable[_T]]) -> list[_T]:
    """The results of all, in order, some at a time."""
    free = asyncio.Semaphore(AT_ONCE)

    async def within(job: Awaitable[_T]) -> _T:
        async with free:
            return await job

    return await asyncio.gather(*(within(job) for job in jobs))
