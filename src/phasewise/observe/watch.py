"""Watches a target for a while: counters before and after, every step between, the gateway's timelines.

It only reads. What the evidence says is left to diagnosis.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.step_feed import StepFeed
from phasewise.adapters.timeline_feed import TimelineFeed
from phasewise.adapters.vllm_metrics import MetricsDelta, MetricsSnapshot, delta, fetch_metrics
from phasewise.diagnosis.engine_view import timelines_from_steps
from phasewise.diagnosis.picture import Logs
from phasewise.errors import PhasewiseError, UpstreamError
from phasewise.model.step_log import logs_by_rank
from phasewise.model.steps import EngineStep
from phasewise.model.timeline import Part, Timeline
from phasewise.observe.evidence import Evidence
from phasewise.observe.target import QUICK, TargetKind, WatchedEngine, WatchTarget, admin_headers

LOOK_BACK_S = 120.0
"""Requests that end in the window may have begun this much before it."""


@dataclass(slots=True)
class _EngineWatch:
    """One engine under watch."""

    engine: WatchedEngine
    client: HttpClient
    feed: StepFeed | None
    before: MetricsSnapshot | None = None
    steps: list[EngineStep] = field(default_factory=list)
    details: bool = False
    dropped: int = 0

    async def begin(self) -> None:
        self.before = await self._snapshot()
        await self._poll()

    async def end(self) -> MetricsDelta | None:
        await self._poll()
        after = await self._snapshot()
        return None if self.before is None or after is None else delta(self.before, after)

    async def _snapshot(self) -> MetricsSnapshot | None:
        try:
            return await fetch_metrics(self.client)
        except UpstreamError:
            # An engine may be out of our reach though not out of the gateway's, or have died meanwhile.
            return None

    async def _poll(self) -> None:
        if self.feed is None:
            return
        try:
            batch = await self.feed.poll()
        except PhasewiseError:
            # A stock engine has no recorder; what that hides is said in the evidence.
            self.feed = None
            return
        if batch.restarted:
            self.steps.clear()
        self.steps += batch.steps
        self.details, self.dropped = batch.details, self.dropped + batch.dropped

    def close(self) -> None:
        self.client.close()
        if self.feed is not None:
            self.feed.close()


class Watch:
    """A window over a target: `begin`, let time pass or traffic flow, `end`."""

    def __init__(self, target: WatchTarget, admin_key: str | None = None) -> None:
        self._target = target
        self._engines = [_watch_engine(engine) for engine in target.engines]
        self._client = HttpClient(target.url, QUICK)
        self._gateway: TimelineFeed | None = None
        if target.kind is TargetKind.GATEWAY:
            self._gateway = TimelineFeed(self._client, admin_headers(admin_key))
        self._began_unix_s = 0.0

    async def begin(self) -> None:
        """Note where the counters and the step records stand."""
        self._began_unix_s = time.time()
        for engine in self._engines:
            await engine.begin()
        if self._gateway is not None:
            await self._gateway.skip()

    async def end(self, probed: tuple[Timeline, ...] = ()) -> Evidence:
        """Gather what happened since `begin`; `probed` are requests that we sent ourselves."""
        deltas = [found for engine in self._engines if (found := await engine.end()) is not None]
        logs = {engine.engine.name: logs_by_rank(engine.steps) for engine in self._engines if engine.steps}
        timelines, seen_by = await self._timelines(probed, logs)
        return Evidence(
            began_unix_s=self._began_unix_s,
            window_s=time.time() - self._began_unix_s,
            seen_by=seen_by,
            timelines=timelines,
            logs=logs,
            metrics=tuple(deltas),
            not_known=self._not_known(
                timelines, logs, deltas, marked=bool(probed) or self._gateway is not None
            ),
        )

    def close(self) -> None:
        """Drop every connection."""
        for engine in self._engines:
            engine.close()
        self._client.close()

    async def _timelines(self, probed: tuple[Timeline, ...], logs: Logs) -> tuple[tuple[Timeline, ...], str]:
        if self._gateway is not None:
            return await self._gateway.read(), "the gateway"
        if probed:
            return probed, "our own probe"
        seen = tuple(
            timeline
            for name, ranks in logs.items()
            for log in ranks
            for timeline in timelines_from_steps(log, name, "")
        )
        return self._ended_in_window(seen), "the engine's step record" if seen else "engine counters"

    def _ended_in_window(self, timelines: tuple[Timeline, ...]) -> tuple[Timeline, ...]:
        return tuple(it for it in timelines if it.started_unix_s + it.ended_s >= self._began_unix_s)

    def _not_known(
        self,
        timelines: tuple[Timeline, ...],
        logs: Logs,
        deltas: list[MetricsDelta],
        *,
        marked: bool,
    ) -> tuple[str, ...]:
        notes = []
        if len(deltas) < len(self._engines):
            silent = len(self._engines) - len(deltas)
            notes.append(f"the counters of {silent} of {len(self._engines)} engines: no answer from here")
        if not logs:
            notes.append(
                "which steps stalled a stream and whose tokens filled a prefill: no step recorder answers "
                "(`phasewise engine install --plugin-only` adds it)"
            )
        if dropped := sum(engine.dropped for engine in self._engines):
            notes.append(f"what happened in {dropped} steps that the recorder had overwritten before we came")
        if logs and not all(engine.details for engine in self._engines if engine.steps):
            notes.append("tokens per step: start the engine with --enable-logging-iteration-details")
        if timelines and not any(_has_engine_times(timeline) for timeline in timelines):
            notes.append(
                "queue and prefill of single requests (means are used): start the engine with "
                "--enable-per-request-metrics"
            )
        if not marked:
            notes.append("whether prompts share their beginnings: only the gateway and a probe can tell")
        if logs and self._gateway is None and not marked:
            notes.append("requests that were cancelled: an engine keeps no record of them")
        if self._target.kind is TargetKind.ENGINE:
            notes.append("what happens before the engine: send the traffic through `phasewise gateway`")
        under_way = sum(found.after.gauge("num_requests_running") or 0 for found in deltas)
        waiting = sum(found.after.gauge("num_requests_waiting") or 0 for found in deltas)
        if under_way + waiting:
            notes.append(
                f"how {under_way + waiting:.0f} requests end that were under way when the window closed"
            )
        return tuple(notes)


def _watch_engine(engine: WatchedEngine) -> _EngineWatch:
    feed = None
    if engine.steps_url is not None:
        feed = StepFeed(engine.steps_url, since_unix_s=time.time() - LOOK_BACK_S)
    return _EngineWatch(engine, HttpClient(engine.url, QUICK), feed)


def _has_engine_times(timeline: Timeline) -> bool:
    serving = timeline.serving_attempt
    parts = {span.part for span in serving.spans} if serving is not None else set()
    return bool(parts & {Part.ENGINE_QUEUE, Part.PREFILL})
