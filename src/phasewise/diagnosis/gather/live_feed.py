"""Snapshots of the live view: a gateway's own stream, or made here from what an engine shows every second."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from urllib.parse import urlencode

import orjson

from phasewise.clients.http_client import HttpClient, Reply
from phasewise.clients.sse import EventSplitter
from phasewise.clients.step_feed import ListingFeed, StepFeed
from phasewise.core.engine_metrics import EngineSeries, MetricsSnapshot, delta
from phasewise.core.errors import ConfigError, PhasewiseError, UpstreamError
from phasewise.core.slo import Slo
from phasewise.core.steps import EngineStep, logs_by_rank
from phasewise.core.timeline import Outcome, Timeline
from phasewise.diagnosis.analysis.engine_counters import Spread, engine_counters
from phasewise.diagnosis.analysis.engine_view import timelines_from_steps
from phasewise.diagnosis.gather.engine_watch import LISTED_EVERY_S, LOOK_BACK_S
from phasewise.diagnosis.gather.target import QUICK, admin_headers, rejected_admin
from phasewise.diagnosis.live.engine_readings import EngineReadings
from phasewise.diagnosis.live.snapshot import (
    UNEXPLAINED,
    LivePart,
    LivePhase,
    LivePoint,
    LiveSnapshot,
    judged,
    snapshot_from,
)
from phasewise.diagnosis.live.window import (
    HISTORY_S,
    WINDOW_S,
    LiveWindow,
    OpenRequest,
    held_by,
    pace,
)
from phasewise.diagnosis.observed.observation import WatchedEngine
from phasewise.engines.known import engine_named

LIVE_PATH = "/phasewise/v1/live"
EVERY_S = 1.0
LONE = "engine"
"""What the only engine is called."""
NO_REQUESTS = "single requests, what they wait for, and streams that stand still"


async def gateway_snapshots(url: str, admin_key: str | None, slo: str | None) -> AsyncIterator[LiveSnapshot]:
    """The gateway's own snapshots, one a second, until it stops."""
    client, events = HttpClient(url, QUICK), EventSplitter()
    headers = (*admin_headers(admin_key), (b"accept", b"text/event-stream"))
    path = LIVE_PATH + (f"?{urlencode({'slo': slo})}" if slo else "")
    try:
        async with await client.send("GET", path, headers=headers) as reply:
            if reply.status != 200:
                raise _rejected(
                    url, Reply(reply.status, reply.headers, await reply.read_all(2**20)), admin_key
                )
            while data := await reply.read():
                for event in events.feed(data):
                    yield snapshot_from(orjson.loads(event.removeprefix(b"data: ")))
    finally:
        client.close()


def _rejected(url: str, reply: Reply, admin_key: str | None) -> ConfigError:
    if reply.status in {401, 403}:
        return rejected_admin(url, reply, admin_key)
    return ConfigError(
        f"{url} answered {reply.status}", hint="check that this is a phasewise gateway of the same version"
    )


async def engine_snapshots(engine: WatchedEngine, slo: Slo) -> AsyncIterator[LiveSnapshot]:
    """Snapshots of an engine without a gateway: by its steps if it shows them, else by its counters."""
    feed = _EngineFeed(replace(engine, name=LONE), slo)
    following = asyncio.create_task(feed.follow())
    try:
        while True:
            due_s = time.monotonic() + EVERY_S
            if (snapshot := await feed.snapshot()) is not None:
                yield snapshot
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        feed.close()


class _EngineFeed:
    """Reads one engine every second."""

    def __init__(self, engine: WatchedEngine, slo: Slo) -> None:
        self._engine = engine
        self._kind = engine_named(engine.kind)
        self._slo = slo
        self._client = HttpClient(engine.url, QUICK)
        self._steps_feed: StepFeed | None = None
        self._listing: ListingFeed | None = None
        self._window = LiveWindow(lambda _class: slo)
        if self._kind.LISTING_PATH is not None:
            self._listing = ListingFeed(self._client, self._kind)
            self._window.begin(time.time())
        elif engine.steps_url is not None:
            self._steps_feed = StepFeed(engine.steps_url, since_unix_s=time.time() - LOOK_BACK_S)
        self._steps: deque[EngineStep] = deque()
        self._recorded = False
        self._readings = EngineReadings()
        self._metrics: deque[MetricsSnapshot] = deque()
        self._known: set[str] = set()

    async def follow(self) -> None:
        """Read the requests that it lists many times a second; an engine with a recorder needs no more."""
        while self._listing is not None:
            readings = self._readings.kept
            steps = await self._listing.poll(readings[-1].waiting if readings else None)
            self._recorded = self._recorded or steps is not None
            self._steps.extend(steps or ())
            await asyncio.sleep(LISTED_EVERY_S)

    async def snapshot(self) -> LiveSnapshot | None:
        """The snapshot of this second; None while the engine does not answer."""
        await self._read_metrics()
        await self._read_steps()
        if self._recorded:
            return self._from_steps(time.time())
        return self._from_counters() if self._metrics else None

    def close(self) -> None:
        self._client.close()
        if self._steps_feed is not None:
            self._steps_feed.close()

    async def _read_metrics(self) -> None:
        with suppress(UpstreamError):
            reply = await self._client.fetch("GET", "/metrics")
            if reply.status != 200:
                return
            now_s = time.time()
            if (reading := self._kind.read_page(reply.body, now_s).load) is not None:
                self._readings.add(reading)
            self._metrics.append(self._kind.parse_metrics(reply.body.decode(errors="replace"), now_s))
        while len(self._metrics) > 2 and self._metrics[1].taken_at_unix_s < time.time() - WINDOW_S:
            self._metrics.popleft()

    async def _read_steps(self) -> None:
        if self._steps_feed is not None:
            try:
                batch = await self._steps_feed.poll()
            except PhasewiseError:
                if not self._recorded:
                    self._steps_feed.close()
                    self._steps_feed = None
                return
            if batch.restarted:
                self._steps.clear()
            self._recorded = True
            self._steps.extend(batch.steps)
        while self._steps and self._steps[0].ended_unix_s < time.time() - LOOK_BACK_S:
            self._steps.popleft()

    # --- from steps -------------------------------------------------------------------------------------

    def _from_steps(self, now_s: float) -> LiveSnapshot:
        logs, name = logs_by_rank(tuple(self._steps)), self._engine.name
        seen = [timeline for log in logs for timeline in timelines_from_steps(log, name, now_s)]
        ended = [timeline for timeline in seen if timeline.outcome is not Outcome.UNFINISHED]
        for timeline in sorted(ended, key=lambda timeline: timeline.started_unix_s + timeline.ended_s):
            if timeline.request_id not in self._known:
                self._known.add(timeline.request_id)
                self._window.add(timeline)
        under_way = [_open(timeline) for timeline in seen if timeline.outcome is Outcome.UNFINISHED]
        engine = self._readings.engine(self._engine.name)
        last = self._steps[-1] if self._steps else None
        if engine.running is None and last is not None:
            engine = replace(engine, running=last.running, waiting=last.waiting)
        way = ("what clients see on the way: network, proxies",)
        around = LiveSnapshot(
            now_s, "engine", open_requests=len(under_way), engines=(engine,), not_observed=way
        )
        return self._window.snapshot(around, under_way, lambda request: held_by(request, engine, 0))

    # --- from counters ----------------------------------------------------------------------------------

    def _from_counters(self) -> LiveSnapshot:
        first, last = self._metrics[0], self._metrics[-1]
        change = delta(first, last)
        if not change.same_incarnation:
            self._metrics = deque([last])
        window_s = max(1.0, last.taken_at_unix_s - first.taken_at_unix_s)
        counted = engine_counters([change], window_s, self._slo)
        tpot = counted.tpot or counted.itl
        start, stream = _phase(counted.ttft), _phase(tpot)
        if start is not None and counted.queue is not None and counted.prefill is not None:
            known = (LivePart("engine queue", counted.queue.mean), LivePart("prefill", counted.prefill.mean))
            rest_s = start.mean_s - sum(part.seconds for part in known)
            start = replace(start, parts=(*known, LivePart(UNEXPLAINED, rest_s)))
        ended = 0.0 if counted.output_tokens is None else float(counted.output_tokens.count)
        tokens = change.counter(EngineSeries.OUTPUT_TOKENS) or 0.0
        engine = replace(
            self._readings.engine(self._engine.name),
            ttft_s=None if start is None else start.mean_s,
            tpot_s=None if stream is None else stream.mean_s,
        )
        seen = LiveSnapshot(
            last.taken_at_unix_s,
            "engine",
            window_s,
            requests_per_s=ended / window_s,
            tokens_per_s=tokens / window_s,
            ended=round(ended),
            history=tuple(self._points()),
            open_requests=(engine.running or 0) + (engine.waiting or 0),
            engines=(engine,),
            not_observed=(f"{NO_REQUESTS}: {self._kind.WITHOUT_STEPS}",),
        )
        return judged(seen, start, stream, self._slo)

    def _points(self) -> Iterator[LivePoint]:
        """A point per pair of readings, with the means between them."""
        readings = self._readings.kept[-HISTORY_S:]
        for one, other in pairwise(readings):
            ttft_s = _ratio(one.ttft_sum_s, other.ttft_sum_s, one.first_tokens, other.first_tokens)
            tpot_s = _ratio(one.gaps_sum_s, other.gaps_sum_s, one.gaps, other.gaps)
            ended = (other.finished or 0.0) - (one.finished or 0.0)
            yield LivePoint(other.at_unix_s, ttft_s, tpot_s, round(ended))


def _ratio(*sums: float | None) -> float | None:
    """The growth of a sum over the growth of its count."""
    before, after, counted, counting = sums
    if before is None or after is None or counted is None or counting is None or counting <= counted:
        return None
    return (after - before) / (counting - counted)


def _phase(spread: Spread | None) -> LivePhase | None:
    if spread is None:
        return None
    over = round(spread.over_share * spread.count)
    return LivePhase(spread.count, over, spread.p50, spread.p90, spread.mean)


def _open(timeline: Timeline) -> OpenRequest:
    times_s, serving = timeline.content_times_s, timeline.serving_attempt
    return OpenRequest(
        timeline.request_id.removeprefix(f"{LONE}-"),
        timeline.tenant,
        timeline.slo_class,
        "" if serving is None else serving.worker.name,
        timeline.ended_s,
        times_s[0] if times_s else None,
        pace(times_s) if times_s else None,
        timeline.ended_s - times_s[-1] if times_s else timeline.ended_s,
    )
