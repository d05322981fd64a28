"""Runs blocks of requests on two sides of a comparison: warms engines up, chooses the size, compares."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from phasewise.core.errors import MeasurementError
from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.timeline import Outcome
from phasewise.experiments.compare.arms import UrlArm
from phasewise.experiments.compare.compare import ComparePlan, compare_arms
from phasewise.experiments.compare.runner import Measure, never
from phasewise.experiments.compare.verdict import Rules
from phasewise.experiments.lever_runs.engines import RunningEngine
from phasewise.experiments.levers.agenda import Effort
from phasewise.experiments.levers.catalogue import MARGIN, Workload
from phasewise.experiments.levers.results import RowResult, effect_of
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import RunSpec
from phasewise.loadgen.statistics.comparison import Metric


class StoppedEarly(Exception):
    """The user ended a block with Ctrl-C; complete blocks are kept."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a running engine, and the address at which it is measured."""

    engine: RunningEngine
    url: str


@dataclass(slots=True)
class Blocks:
    """Measures blocks; remembers which engines are warm."""

    measure: Measure
    effort: Effort
    seed: int
    forgives: Callable[[], bool] = never
    _warm: set[str] = field(default_factory=set)

    async def compare(
        self, workload: Workload, metrics: tuple[Metric, ...], off: Side, on: Side, label: str
    ) -> RowResult:
        """Measure pairs of blocks on both sides, judged by these metrics."""
        began_s = time.monotonic()
        requests = await self._fill(workload, (off, on), label)
        plan = ComparePlan(
            spec=RunSpec(workload.of(requests), self.seed),
            rules=Rules(DEFAULT_SLO, workload.warm_up_requests, margin=MARGIN, metrics=metrics),
            control_pairs=0,
            pairs=self.effort.pairs,
        )

        async def measured(url: str, spec: RunSpec, block: str) -> BenchRun:
            return await self._measured(url, spec, f"{label}, {block}")

        result = await compare_arms(UrlArm(off.url), UrlArm(on.url), plan, measured, forgives=self.forgives)
        if result.cut_short:
            raise StoppedEarly
        if result.gave_up:
            raise MeasurementError(result.gave_up, hint="measure on a quieter machine")
        return RowResult(
            effects=tuple(map(effect_of, result.comparisons)),
            requests=requests,
            pairs=result.pairs,
            void_pairs=result.void_pairs,
            remarks=result.remarks,
            took_s=round(time.monotonic() - began_s, 1),
            measured_unix_s=time.time(),
        )

    async def run(self, workload: Workload, url: str, requests: int, label: str) -> BenchRun:
        """One complete block."""
        run = await self._measured(url, RunSpec(workload.of(requests), self.seed), label)
        if run.cut_short:
            raise StoppedEarly
        return run

    async def _fill(self, workload: Workload, sides: tuple[Side, Side], label: str) -> int:
        """How many requests fill a block; a complete block warms up a new engine.

        The base engine has served for long when another one has just started: only warm ones are comparable.
        """
        by_url = {side.url: side for side in sides}
        request_s = {
            url: await self._request_s(workload, url, workload.least_requests, f"{label}, trial")
            for url in by_url
        }
        requests = self.effort.block_requests(workload, fmean(request_s.values()))
        for url, side in by_url.items():
            # By address, not by name: an engine that was restarted is cold again.
            if side.engine.url not in self._warm:
                request_s[url] = await self._request_s(workload, url, requests, f"{label}, warm-up")
                self._warm.add(side.engine.url)
        return self.effort.block_requests(workload, fmean(request_s.values()))

    async def _request_s(self, workload: Workload, url: str, requests: int, label: str) -> float:
        """By how much each request lengthens a block."""
        return (await self.run(workload, url, requests, label)).wall_s / requests

    async def _measured(self, url: str, spec: RunSpec, label: str) -> BenchRun:
        """A block; if all its requests failed, that is an error."""
        run = await self.measure(url, spec, label)
        failed = [timeline for timeline in run.timelines if timeline.outcome is not Outcome.SUCCEEDED]
        if failed and len(failed) == len(run.timelines) and not run.cut_short:
            reason = failed[0].reason or failed[0].outcome
            raise MeasurementError(
                f"every request of a block failed, the first one with: {reason}",
                hint="the engine's log says more; requests are chats, so the model needs a chat template",
            )
        return run
