"""Computes the live view once a second for all who look at it; with nobody there, it does nothing.

Its own CPU time is counted and shown with each snapshot: `view_cpu_s`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager

import orjson

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from phasewise.core.slo import Slo
from phasewise.core.timeline import Timeline
from phasewise.core.timeline_record import decode
from phasewise.core.value import value
from phasewise.core.worker import Worker
from phasewise.diagnosis.live.engine_readings import EngineReadings
from phasewise.diagnosis.live.snapshot import LiveEngine, LiveSnapshot, LiveTenant
from phasewise.diagnosis.live.window import (
    HISTORY_S,
    MOST_KEPT,
    LiveWindow,
    OpenRequest,
    held_by,
    pace,
)
from phasewise.engines.known import read_page
from phasewise.gateway.guard import ErrorGuard
from phasewise.gateway.processes.peers import Peers
from phasewise.gateway.records.timeline_store import DECODED_AT_ONCE, TimelineStore, in_turns
from phasewise.gateway.upstream.call import Call, OpenRequests
from phasewise.gateway.upstream.engines import Connect
from phasewise.scheduling import World
from phasewise.scheduling.world import Health, WorkerState

EVERY_S = 1.0
READ_PER_S = 10
"""Engines whose counters are read in one second, one after the other: of 50, each is read every 5 s."""
READ_TIMEOUTS = Timeouts(connect_s=1.0, head_s=2.0, idle_s=2.0)
MOST_CAUGHT_UP = 2_000
"""Requests from before the first look that are read again, for the figures of the last seconds."""
OPEN_AT_ONCE, ADDED_AT_ONCE = 200, 20
"""Open requests that are looked at, and ended ones that are added, per turn of the event loop: less than half
a millisecond."""
MOST_OPEN = 5_000
LIVE_PATH = "/phasewise/v1/live"


class LiveView:
    """A TimelineSink, and the snapshots of what it has seen."""

    def __init__(
        self,
        world: World,
        timelines: TimelineStore,
        open_requests: OpenRequests,
        connect: Connect,
        slo_of: Callable[[str], Slo],
        peers: Peers,
    ) -> None:
        self._peers = peers
        self._others_after: dict[int, int] = {}
        self._world = world
        self._timelines = timelines
        self._open_requests = open_requests
        self._connect = connect
        self._window = LiveWindow(slo_of)
        self._listeners = 0
        self._ticked = asyncio.Event()
        self._new: deque[Timeline] = deque(maxlen=MOST_KEPT)
        self._seen: tuple[LiveSnapshot, list[OpenRequest]] | None = None
        self._encoded: dict[Slo | None, bytes] = {}
        self._readings: dict[str, EngineReadings] = {}
        self._clients: dict[str, HttpClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cpu_s = 0.0
        self._guard = ErrorGuard("the live view")

    def record(self, timeline: Timeline) -> None:
        """A request has ended."""
        if self._listeners:
            self._new.append(timeline)

    def readings(self, name: str) -> EngineReadings:
        """The last readings of one engine; empty if nobody has looked."""
        return self._readings.get(name) or EngineReadings()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Somebody looks until the block is left."""
        self._listeners += 1
        if not self._tasks:
            self._begin(self._run())
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self.stop()

    async def next(self, slo: Slo | None = None) -> bytes:
        """The next snapshot as JSON, held to this objective if it is given; only while `listening`."""
        await self._ticked.wait()
        made = self._encoded.get(slo)
        if made is None and self._seen is not None:
            with self._metered():
                snapshot = self._window.snapshot(*self._seen, self._held_by, slo)
                made = self._encoded[slo] = orjson.dumps(snapshot)
        return (made or b"{}")[:-1] + b',"view_cpu_s":%.6f}' % self._cpu_s

    def stop(self) -> None:
        """Forget everything but the CPU time, and drop the connections."""
        for task in self._tasks:
            task.cancel()
        self._tasks = set()
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._readings.clear()
        self._encoded.clear()
        self._new.clear()
        self._seen = None

    @contextmanager
    def _metered(self) -> Iterator[None]:
        began_s = time.thread_time()
        try:
            yield
        finally:
            self._cpu_s += time.thread_time() - began_s

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- once a second ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        first = [self._begin(self._read(worker)) for worker in self._up()[:READ_PER_S]]
        with self._guard:
            await self._catch_up()
        if first:
            await asyncio.wait(first, timeout=EVERY_S / 2)
        self._begin(self._read_engines())
        while True:
            due_s = time.monotonic() + EVERY_S
            with self._guard:
                await self._tick()
            await asyncio.sleep(max(0.1, due_s - time.monotonic()))

    async def _catch_up(self) -> None:
        """Take the requests that ended shortly before somebody looked, in whichever process."""
        self._others_after.clear()
        own = self._timelines.newest(MOST_CAUGHT_UP).texts
        since_s, ended = time.time() - HISTORY_S, list[tuple[float, Timeline]]()
        for lines in (own, *(other.lines for other in await self._ask_others())):
            some = [(_end_s(timeline), timeline) async for timeline in self._decoded(lines)]
            if len(lines) >= MOST_CAUGHT_UP:  # there were more, which are not kept or not sent
                since_s = max(since_s, some[0][0])
            ended += some
        self._window.begin(since_s)
        with self._metered():
            for end_s, timeline in sorted(ended, key=lambda pair: pair[0]):
                if end_s >= since_s:
                    self._window.add(timeline)

    async def _decoded(self, lines: Sequence[bytes]) -> AsyncIterator[Timeline]:
        """Some at a time: streams must not wait for all of them."""
        async for line in in_turns(lines, DECODED_AT_ONCE):
            with self._metered():
                timeline = decode(line)
            yield timeline

    async def _tick(self) -> None:
        while self._new:
            with self._metered():
                for _ in range(min(len(self._new), ADDED_AT_ONCE)):
                    self._window.add(self._new.popleft())
            await asyncio.sleep(0)
        seen = await self._look_at_open()
        world, waiting = self._world, dict(self._world.queue.waiting_by_tenant)
        for other in await self._ask_others():
            seen += other.open
            for tenant, count in other.waiting.items():
                waiting[tenant] = waiting.get(tenant, 0) + count
            async for timeline in self._decoded(other.lines):
                self._window.add(timeline)
        with self._metered():
            open_by_tenant = dict.fromkeys(waiting, 0)
            for request in seen:
                open_by_tenant[request.tenant] = open_by_tenant.get(request.tenant, 0) + 1
            on_engine = Counter(request.engine for request in seen)
            around = LiveSnapshot(
                time.time(),
                "gateway",
                open_requests=max(len(self._open_requests), len(seen)),
                waiting=sum(waiting.values()),
                engines=tuple(
                    self._engine(state, on_engine[state.worker.name]) for state in world.cluster.snapshot()
                ),
                tenants=tuple(
                    LiveTenant(name, count, waiting.get(name, 0)) for name, count in open_by_tenant.items()
                ),
            )
        self._seen = around, seen
        self._encoded.clear()
        ticked, self._ticked = self._ticked, asyncio.Event()
        ticked.set()

    # --- other processes of this gateway ------------------------------------------------------------------

    async def _ask_others(self) -> list[_Other]:
        """What they have under way, and what has ended there since they were asked before."""
        known, others = self._others_after, []
        replies = await self._peers.ask_all(
            "GET", lambda process: f"{LIVE_PATH}?after={known.get(process, '')}"
        )
        # Of a process that did not answer in time, nothing is skipped.
        self._others_after = {process: known[process] for process in self._peers.others if process in known}
        for process, reply in replies.items():
            head, *lines = reply.body.split(b"\n")
            said = orjson.loads(head)
            self._others_after[process] = said["next"]
            others.append(_Other([OpenRequest(**fields) for fields in said["open"]], said["waiting"], lines))
        return others

    async def report(self, after: str) -> bytes:
        """What this process has under way, and the requests that have ended since a number, or the last
        ones.
        """
        store = self._timelines
        page = store.page(MOST_CAUGHT_UP, int(after)) if after else store.newest(MOST_CAUGHT_UP)
        under_way = await self._look_at_open()
        waiting = dict(self._world.queue.waiting_by_tenant)
        head = orjson.dumps({"next": page.ends[self._peers.process], "open": under_way, "waiting": waiting})
        return b"\n".join((head, *page.texts))

    async def _look_at_open(self) -> list[OpenRequest]:
        found: list[OpenRequest] = []
        calls = self._open_requests.calls(MOST_OPEN)
        for first in range(0, len(calls), OPEN_AT_ONCE):
            with self._metered():
                now_s = time.monotonic()
                some = calls[first : first + OPEN_AT_ONCE]
                found += [_open(call, now_s) for call in some if call.timeline.request.endpoint.generates]
            await asyncio.sleep(0)
        return found

    def _engine(self, state: WorkerState, open_requests: int = 0) -> LiveEngine:
        ref, up = state.worker.ref, state.health is Health.UP
        return self.readings(ref.name).engine(
            ref.name,
            health="circuit open" if up and self._world.breakers.is_open(ref) else state.health.value,
            note=state.note,
            open_requests=max(open_requests, self._world.ledger.load(ref).requests),
        )

    def _held_by(self, request: OpenRequest) -> str:
        state = next(
            (state for state in self._world.cluster.snapshot() if state.worker.name == request.engine), None
        )
        if state is None:
            return held_by(request, None, 0)
        prefilling = self._world.ledger.load(state.worker.ref).unread_requests
        return held_by(request, self._engine(state), prefilling)

    async def _read_engines(self) -> None:
        """Read the counters of one engine after the other: many replies at once would hold streams up."""
        while True:
            workers = self._up()
            for gone in self._clients.keys() - {worker.url for worker in workers}:
                self._clients.pop(gone).close()
            pause_s = EVERY_S / max(1, min(READ_PER_S, len(workers)))
            for worker in workers:
                self._begin(self._read(worker))
                await asyncio.sleep(pause_s)
            if not workers:
                await asyncio.sleep(pause_s)

    def _up(self) -> list[Worker]:
        return [state.worker for state in self._world.cluster.snapshot() if state.health is Health.UP]

    async def _read(self, worker: Worker) -> None:
        client = self._clients.get(worker.url)
        if client is None:
            client = self._clients[worker.url] = self._connect(worker, READ_TIMEOUTS)
        try:
            reply = await client.fetch("GET", "/metrics")
        except UpstreamError:
            return
        with self._guard, self._metered():
            reading = read_page(reply.body, time.time()).load if reply.status == 200 else None
            if reading is not None:
                self._readings.setdefault(worker.name, EngineReadings()).add(reading)


def _end_s(timeline: Timeline) -> float:
    return timeline.started_unix_s + timeline.ended_s


@value
class _Other:
    """What another process has under way, and lines of requests that have ended there."""

    open: list[OpenRequest]
    waiting: dict[str, int]
    lines: list[bytes]


def _open(call: Call, now_s: float) -> OpenRequest:
    builder = call.timeline
    request, answer, worker = builder.request, builder.answer, builder.worker
    times_s = () if answer is None else answer.content_times_s
    age_s = now_s - request.arrived_s
    return OpenRequest(
        request.request_id,
        request.tenant,
        request.slo_class,
        "" if worker is None else worker.name,
        age_s,
        times_s[0] - request.arrived_s if times_s else None,
        pace(times_s) if times_s else None,
        now_s - times_s[-1] if times_s else age_s,
        call.client.sending_since_s is not None,
        request.stream,
    )
