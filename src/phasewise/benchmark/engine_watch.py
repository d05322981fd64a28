"""Watches the engine during a run: its counters once a second, its recorded steps at the end.

Pages are parsed after the run, because parsing them would delay the generator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from phasewise.benchmark.statistics.summary import Summary, summarise
from phasewise.benchmark.target import Target
from phasewise.clients.engine_metrics import read_metrics
from phasewise.clients.host import CpuTimes, read_cpu_times
from phasewise.clients.http_client import Headers, HttpClient, Timeouts
from phasewise.clients.step_feed import StepFeed, default_steps_url
from phasewise.core.engine_metrics import EngineSeries, MetricsDelta, MetricsSnapshot, delta, merged
from phasewise.core.errors import PhasewiseError, UpstreamError
from phasewise.core.steps import EngineStep, time_steps

SAMPLE_EVERY_S = 1.0
MOST_PAGES = 600
"""How many raw pages are kept, some 60 kB each; in a longer run every second one is dropped, and so on."""
_TIMEOUTS = Timeouts(connect_s=2.0, head_s=5.0, idle_s=5.0)


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """What the engine reported during a run, oldest first.

    `steps` is empty where no step recorder answers; then there are only counters.
    """

    snapshots: tuple[MetricsSnapshot, ...] = ()
    steps: tuple[EngineStep, ...] = ()


@dataclass(slots=True)
class EngineSampler:
    """Samples taken during a run; `record` parses them when it is over.

    Each has a page from every one of `paths`: behind a gateway there may be several engines.
    """

    steps_url: str | None
    paths: tuple[str, ...] = ("/metrics",)
    headers: Headers = field(default=(), repr=False)
    cpu_samples: list[CpuTimes] = field(default_factory=list)
    _pages: list[tuple[float, list[bytes]]] = field(default_factory=list)
    _started_unix_s: float = field(default_factory=time.time)
    _has_counters: bool = True

    async def record(self) -> EngineRecord | None:
        """The engine's own record; None where the address has neither vLLM's counters nor steps."""
        snapshots = tuple(
            snapshot
            for at_unix_s, pages in self._pages
            if (snapshot := _parsed(pages, at_unix_s)) is not None
        )
        steps = await self._steps()
        return EngineRecord(snapshots, steps) if snapshots or steps else None

    async def sample(self, client: HttpClient) -> None:
        """Take one sample; for an address without counters it has only the machine's own figures."""
        at_unix_s = time.time()
        if (cpu := read_cpu_times()) is not None:
            self.cpu_samples.append(cpu)
        if not self._has_counters:
            return
        asked = (client.fetch("GET", path, headers=self.headers) for path in self.paths)
        try:
            replies = await asyncio.gather(*asked)
        except UpstreamError:
            return
        # An engine behind a gateway may be down for a while.
        self._has_counters = bool(self.headers) or replies[0].status == 200
        if all(reply.status == 200 for reply in replies):
            self._pages.append(((at_unix_s + time.time()) / 2, [reply.body for reply in replies]))
            if len(self._pages) > MOST_PAGES:
                del self._pages[1:-1:2]

    async def _steps(self) -> tuple[EngineStep, ...]:
        if self.steps_url is None:
            return ()
        feed = StepFeed(self.steps_url, since_unix_s=self._started_unix_s)
        try:
            return (await feed.poll()).steps
        except PhasewiseError:
            return ()
        finally:
            feed.close()


@asynccontextmanager
async def watching(target: Target, steps_url: str | None = None) -> AsyncIterator[EngineSampler]:
    """Sample the target's engines every second until the block ends, and once more at its end.

    Its step recorder is expected at the usual port unless another is given.
    """
    headers = target.admin if target.workers else ()
    watch = EngineSampler(steps_url or default_steps_url(target.url), target.counter_paths, headers)
    client = HttpClient(target.url, _TIMEOUTS)

    async def keep_sampling() -> None:
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            await watch.sample(client)

    # Before the first request, so that none is missed.
    await watch.sample(client)
    sampling = asyncio.create_task(keep_sampling())
    try:
        yield watch
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        await watch.sample(client)
        client.close()


def _parsed(pages: Sequence[bytes], at_unix_s: float) -> MetricsSnapshot | None:
    try:
        snapshot = merged([read_metrics(page, at_unix_s) for page in pages])
    except UpstreamError:
        return None
    # A gateway's page has no engine metrics.
    return snapshot if snapshot.gauges else None


# --- The engine's own figures of a run's window, to compare with the client's.
#
# Where the two differ, the time was spent between them.


@dataclass(frozen=True, slots=True)
class Gauge:
    """The engine's load at one moment, in seconds since the run began."""

    at_s: float
    kv_usage: float | None
    running: float | None
    waiting: float | None


@dataclass(frozen=True, slots=True)
class StepsView:
    """The recorded steps of the window. `mixed` ones carried both prompt and decode tokens."""

    count: int
    mixed: int
    duration_s: Summary
    prompt_tokens: int
    decode_tokens: int


@dataclass(frozen=True, slots=True)
class EngineView:
    """What the engine counted in the window; None where it has no such counter.

    Counters are read once a second, so the engine's window is up to two seconds longer than the client's.
    """

    window_s: float | None
    requests: float | None
    ttft_mean_s: float | None
    queue_mean_s: float | None
    prefill_mean_s: float | None
    itl_mean_s: float | None
    e2e_mean_s: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    cached_share: float | None
    preemptions: float | None
    kv_usage_max: float | None
    running_max: float | None
    waiting_max: float | None
    steps: StepsView | None


def view_engine(record: EngineRecord, start_unix_s: float, end_unix_s: float) -> EngineView:
    """What the engine counted between two moments."""
    change = _change(record.snapshots, start_unix_s, end_unix_s)
    inside = [
        gauge for gauge in gauges(record, start_unix_s) if 0.0 <= gauge.at_s <= end_unix_s - start_unix_s
    ]
    queries = None if change is None else change.counter(EngineSeries.PREFIX_QUERIES)
    hits = None if change is None else change.counter(EngineSeries.PREFIX_HITS)
    return EngineView(
        window_s=None if change is None else change.window_s,
        requests=_counted(change, EngineSeries.FINISHED),
        ttft_mean_s=_mean(change, EngineSeries.TTFT),
        queue_mean_s=_mean(change, EngineSeries.QUEUE_TIME),
        prefill_mean_s=_mean(change, EngineSeries.PREFILL_TIME),
        itl_mean_s=_mean(change, EngineSeries.ITL),
        e2e_mean_s=_mean(change, EngineSeries.E2E),
        prompt_tokens=_counted(change, EngineSeries.PROMPT_TOKENS),
        generation_tokens=_counted(change, EngineSeries.OUTPUT_TOKENS),
        cached_share=hits / queries if queries and hits is not None else None,
        preemptions=_counted(change, EngineSeries.PREEMPTIONS),
        kv_usage_max=_max(gauge.kv_usage for gauge in inside),
        running_max=_max(gauge.running for gauge in inside),
        waiting_max=_max(gauge.waiting for gauge in inside),
        steps=_view_steps(record.steps, start_unix_s, end_unix_s),
    )


def gauges(record: EngineRecord, started_unix_s: float) -> tuple[Gauge, ...]:
    """The engine's load over the run: at every step where steps were recorded, else once a second."""
    if record.steps:
        return tuple(
            Gauge(step.ended_unix_s - started_unix_s, step.kv_usage, step.running, step.waiting)
            for step in record.steps
        )
    return tuple(
        Gauge(
            snapshot.taken_at_unix_s - started_unix_s,
            snapshot.gauge(EngineSeries.KV_USAGE),
            snapshot.gauge(EngineSeries.RUNNING),
            snapshot.gauge(EngineSeries.WAITING),
        )
        for snapshot in record.snapshots
    )


def _change(snapshots: Sequence[MetricsSnapshot], start_s: float, end_s: float) -> MetricsDelta | None:
    if len(snapshots) < 2:
        return None
    before = [snapshot for snapshot in snapshots if snapshot.taken_at_unix_s <= start_s] or snapshots[:1]
    after = [snapshot for snapshot in snapshots if snapshot.taken_at_unix_s >= end_s] or snapshots[-1:]
    change = delta(before[-1], after[0])
    return change if change.same_incarnation and change.window_s > 0 else None


def _counted(change: MetricsDelta | None, name: str) -> float | None:
    return None if change is None else change.counter(name)


def _mean(change: MetricsDelta | None, name: str) -> float | None:
    histogram = None if change is None else change.histogram(name)
    return None if histogram is None else histogram.mean


def _max(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _view_steps(steps: Sequence[EngineStep], start_s: float, end_s: float) -> StepsView | None:
    inside = [timed for timed in time_steps(steps) if start_s <= timed.step.ended_unix_s <= end_s]
    if not inside:
        return None
    return StepsView(
        count=len(inside),
        mixed=sum(bool(timed.step.prompt_tokens and timed.step.decode_tokens) for timed in inside),
        duration_s=summarise(timed.duration_s for timed in inside),
        prompt_tokens=sum(timed.step.prompt_tokens or 0 for timed in inside),
        decode_tokens=sum(timed.step.decode_tokens or 0 for timed in inside),
    )
