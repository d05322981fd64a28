"""Watches the engine from beside a run: its counters once a second, its recorded steps at the end.

Pages are kept as they came and read after the run, because reading them would hold up the generator. What
they say of the run is left to engine_view.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from phasewise.adapters.host_cpu import CpuTimes, read_cpu_times
from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.adapters.step_feed import StepFeed, default_steps_url
from phasewise.adapters.vllm_metrics import MetricsSnapshot, parse_metrics
from phasewise.errors import PhasewiseError, UpstreamError
from phasewise.model.steps import EngineStep

SAMPLE_EVERY_S = 1.0
MOST_PAGES = 600
"""Pages are kept as they came, some 60 kB each; of a longer run every second one is let go, and so on."""
_TIMEOUTS = Timeouts(connect_s=2.0, head_s=5.0, idle_s=5.0)


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """What the engine said of itself during a run, oldest first.

    `steps` is empty where no recorder answers; then counters are all there is.
    """

    snapshots: tuple[MetricsSnapshot, ...] = ()
    steps: tuple[EngineStep, ...] = ()


@dataclass(slots=True)
class EngineWatch:
    """Samples taken while a run goes on; `record` reads them once it is over."""

    steps_url: str | None
    cpu_samples: list[CpuTimes] = field(default_factory=list)
    _pages: list[tuple[float, bytes]] = field(default_factory=list)
    _started_unix_s: float = field(default_factory=time.time)
    _has_counters: bool = True

    async def record(self) -> EngineRecord | None:
        """The engine's own account, None where the address has no vLLM's counters and no steps."""
        snapshots = tuple(
            snapshot for at_unix_s, page in self._pages if (snapshot := _parsed(page, at_unix_s)) is not None
        )
        steps = await self._steps()
        return EngineRecord(snapshots, steps) if snapshots or steps else None

    async def sample(self, client: HttpClient) -> None:
        """Take one reading; an address without counters leaves only the machine's own."""
        at_unix_s = time.time()
        if (cpu := read_cpu_times()) is not None:
            self.cpu_samples.append(cpu)
        if not self._has_counters:
            return
        try:
            reply = await client.fetch("GET", "/metrics")
        except UpstreamError:
            return
        self._has_counters = reply.status == 200
        if self._has_counters:
            self._pages.append(((at_unix_s + time.time()) / 2, reply.body))
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
async def watching(url: str, steps_url: str | None = None) -> AsyncIterator[EngineWatch]:
    """Sample the engine at `url` every second until the block ends, and once more then.

    Its recorder is looked for at the usual port unless it is elsewhere.
    """
    watch = EngineWatch(steps_url or default_steps_url(url))
    client = HttpClient(url, _TIMEOUTS)

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


def _parsed(page: bytes, at_unix_s: float) -> MetricsSnapshot | None:
    try:
        snapshot = parse_metrics(page.decode(errors="replace"), at_unix_s)
    except UpstreamError:
        return None
    # A gateway's page has no engine's series.
    return snapshot if snapshot.gauges else None
