"""Gathers a window's evidence: all engines, their hosts if local, and the gateway's timelines.

It only reads, except with a probe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from phasewise.benchmark.target import worker_path
from phasewise.clients.host import CpuTimes, read_cpu_times, stolen_share
from phasewise.clients.http_client import Access, HttpClient
from phasewise.clients.timeline_feed import Missed, TimelineFeed
from phasewise.core.errors import UpstreamError
from phasewise.core.timeline import Timeline
from phasewise.diagnosis.gather.engine_watch import EngineWatch
from phasewise.diagnosis.gather.host_watch import HostWatch
from phasewise.diagnosis.gather.probe import PROBE_REQUESTS, probe
from phasewise.diagnosis.gather.target import QUICK, WatchTarget, admin_headers, out_of_service
from phasewise.diagnosis.observed.observation import Observed, TargetKind, WatchedEngine

AT_ONCE = 32
"""The largest number of engines read at the same time."""
TIMELINES_EVERY_S = 2.0
"""How often timelines are read. A gateway keeps 10,000 by default, which is enough for some thousand requests
a second.
"""

_T = TypeVar("_T")


SHORTEST_S, LONGEST_S = 20.0, 60.0
"""How long live traffic is watched if nobody says how long: the longer, the fewer requests end in it."""
ENOUGH_REQUESTS = 30
"""With fewer, one more or less may change the verdict."""


@dataclass(frozen=True, slots=True)
class GatherOrder:
    """How to gather: watch live traffic for `window_s`, or with `probing` send a short load of our own.

    Without `window_s` it is watched for 20 s, and for up to 60 s while few requests have ended.
    """

    window_s: float | None = None
    probing: bool = False
    model: str | None = None
    api_key: str | None = None
    seed: int = 0


class GatherProgress(Protocol):
    """Shows progress while evidence is gathered."""

    def say(self, words: str) -> None:
        """Show a line about the next stage."""
        ...

    def watching(self, window_s: float) -> AbstractAsyncContextManager[None]:
        """A block that lasts as long as the window."""
        ...


async def gather(
    target: WatchTarget, admin_key: str | None, order: GatherOrder, progress: GatherProgress
) -> Observed:
    """What is seen in a window. A first Ctrl-C ends it early; what was observed is still judged."""
    watch = Watch(target, admin_key)
    try:
        await watch.begin()
        if not order.probing:
            await _unless_interrupted(_window(watch, target, order, progress))
            return await watch.end()
        progress.say(f"probing {target.url} with {PROBE_REQUESTS} requests")
        scenes = probe(
            target.url,
            order.model,
            order.api_key,
            order.seed,
            lambda title: progress.say(f"  {title}"),
            admin_key if target.kind is TargetKind.GATEWAY else None,
        )
        probed = await _unless_interrupted(scenes)
        return replace(await watch.end(probed or ()), synthetic=True, cut_short=probed is None)
    finally:
        watch.close()


async def _window(watch: Watch, target: WatchTarget, order: GatherOrder, progress: GatherProgress) -> None:
    first_s = order.window_s or SHORTEST_S
    progress.say(f"watching {target.url} for {first_s:g} s; Ctrl-C ends the window early")
    async with progress.watching(first_s):
        await asyncio.sleep(first_s)
    if order.window_s is None and watch.wants_more():
        progress.say(f"few requests have ended so far: watching for up to {LONGEST_S:g} s")
        async with progress.watching(LONGEST_S - first_s):
            for _ in range(round((LONGEST_S - first_s) / TIMELINES_EVERY_S)):
                if not watch.wants_more():
                    break
                await asyncio.sleep(TIMELINES_EVERY_S)


async def _unless_interrupted(work: Awaitable[_T]) -> _T | None:
    """The result; None after Ctrl-C, which asyncio turns into a cancellation."""
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return None


class Watch:
    """A window over a target: `begin`, let time pass or traffic flow, `end`, all in one event loop."""

    def __init__(self, target: WatchTarget, admin_key: str | None = None) -> None:
        self._target = target
        self._admin_key = admin_key
        self._engines = [
            EngineWatch(engine, _through(target, engine, admin_key)) for engine in target.engines
        ]
        self._host = HostWatch(target.engines)
        self._client = HttpClient(target.url, QUICK)
        self._gateway: TimelineFeed | None = None
        if target.kind is TargetKind.GATEWAY:
            self._gateway = TimelineFeed(self._client, admin_headers(admin_key))
        self._following: list[asyncio.Task[None]] = []
        self._began_unix_s = 0.0
        self._began_cpu: CpuTimes | None = None

    async def begin(self) -> None:
        """Read the counters and the positions of the step records, and follow them."""
        await _bounded(engine.begin() for engine in self._engines)
        # Readings of unresponsive engines have timed out by now: the window opens for all engines at once.
        await asyncio.to_thread(self._host.begin)
        await _bounded(engine.mark() for engine in self._engines)
        if self._gateway is not None:
            await self._gateway.skip()
        self._began_unix_s, self._began_cpu = time.time(), read_cpu_times()
        self._following = [asyncio.create_task(engine.follow()) for engine in self._engines]
        if self._gateway is not None:
            self._following.append(asyncio.create_task(_keep_up_with(self._gateway)))

    def wants_more(self) -> bool:
        """Whether there is traffic, of which too few requests have ended so far."""
        ended = (
            sum(engine.ended_requests for engine in self._engines)
            if self._gateway is None
            else self._gateway.fetched
        )
        return ended < ENOUGH_REQUESTS and (ended > 0 or any(engine.is_busy for engine in self._engines))

    async def end(self, probed: tuple[Timeline, ...] = ()) -> Observed:
        """Gather what happened since `begin`; `probed` are requests that we sent ourselves."""
        await self._stop_following()
        ended_unix_s, ended_cpu = time.time(), read_cpu_times()
        reported = () if self._gateway is None else await _with_open(self._gateway)
        out = {} if self._gateway is None else await out_of_service(self._client, self._admin_key)
        hosts = await asyncio.to_thread(self._host.end)
        # Engines come last, because one may not respond; the requests have been read by then.
        return Observed(
            url=self._target.url,
            kind=self._target.kind,
            began_unix_s=self._began_unix_s,
            ended_unix_s=ended_unix_s,
            engines=tuple(
                replace(seen, out_of_service=out.get(seen.engine.name, ""))
                for seen in await _bounded(engine.end() for engine in self._engines)
            ),
            hosts=hosts,
            reported=reported,
            missed=Missed() if self._gateway is None else self._gateway.missed,
            probed=probed,
            stolen_share=_stolen(self._began_cpu, ended_cpu),
        )

    def close(self) -> None:
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


def _through(target: WatchTarget, engine: WatchedEngine, admin_key: str | None) -> HttpClient | None:
    """The engine's counters as its gateway shows them, if there is one."""
    if target.kind is not TargetKind.GATEWAY:
        return None
    return HttpClient(f"{target.url}{worker_path(engine.name)}", QUICK, Access(admin_key))


def _stolen(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    return None if before is None or after is None else stolen_share(before, after)


async def _keep_up_with(gateway: TimelineFeed) -> None:
    while True:
        await asyncio.sleep(TIMELINES_EVERY_S)
        # A failed reading is retried by the next one; the last one, at the window's end, raises.
        with suppress(UpstreamError):
            await gateway.fetch()


async def _with_open(gateway: TimelineFeed) -> tuple[Timeline, ...]:
    """Finished and open requests. Open ones are read first: one that ends in between is then in both."""
    under_way = await gateway.read_open()
    ended = await gateway.read()
    known = {timeline.request_id for timeline in ended}
    return ended + tuple(timeline for timeline in under_way if timeline.request_id not in known)


async def _bounded(jobs: Iterable[Awaitable[_T]]) -> list[_T]:
    """All results, in order, with limited concurrency."""
    free = asyncio.Semaphore(AT_ONCE)

    async def within(job: Awaitable[_T]) -> _T:
        async with free:
            return await job

    return await asyncio.gather(*(within(job) for job in jobs))
