"""The modes of a bench: one load, several loads, or a search for the highest rate. Ctrl-C keeps results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import numpy as np

from phasewise.benchmark.results import build_report
from phasewise.benchmark.session import RunSpec
from phasewise.benchmark.statistics.max_rate import (
    MaxRate,
    StopSearch,
    TrialOutcome,
    clustering_of,
    search_max_rate,
)
from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop, Spacing
from phasewise.cli.measuring import Interrupts
from phasewise.core.errors import UsageError
from phasewise.core.latency import e2e_s, meets
from phasewise.core.slo import Slo
from phasewise.core.units import significant
from phasewise.report.bench.measured import Measured, load_in_words


@dataclass(frozen=True, slots=True)
class Job:
    """What every run of one command has in common."""

    url: str
    spec: RunSpec
    slo: Slo
    warm_up: int | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)

    async def measure(
        self, load: Load, label: str = "measuring", requests: int | None = None, seed: int | None = None
    ) -> Measured:
        """Measure at one load; `requests` and `seed` replace those of the job if given."""
        plan = replace(self.spec.plan, load=load, requests=requests or self.spec.plan.requests)
        spec = replace(self.spec, plan=plan, seed=self.spec.seed if seed is None else seed)
        run = await self.interrupts.measure(self.url, spec, label)
        rng = np.random.default_rng(spec.seed)
        return Measured(run, build_report(run, self.slo, rng, self.warm_up), self.named(load))

    def named(self, load: Load) -> str:
        """A load in words; with conversations, a rate counts conversations."""
        return load_in_words(load, conversations=self.spec.plan.conversations is not None)


@dataclass(frozen=True, slots=True)
class BenchResults:
    """What a command measured; `found` is the result of a search."""

    measured: tuple[Measured, ...]
    found: MaxRate | None = None
    cut_short: bool = False


async def run_loads(job: Job, loads: tuple[Load, ...]) -> BenchResults:
    """Measure at each load in turn."""
    measured: list[Measured] = []
    with job.interrupts.handled():
        try:
            for number, load in enumerate(loads, 1):
                label = f"{number}/{len(loads)}, {job.named(load)}" if len(loads) > 1 else "measuring"
                measured.append(await job.measure(load, label))
                if job.interrupts.requested:
                    break
        except asyncio.CancelledError:
            if not job.interrupts.forgives():
                raise
    return BenchResults(tuple(measured), cut_short=job.interrupts.requested)


async def run_search(job: Job, start: OpenLoop, attainment: float) -> BenchResults:
    """Search for the highest rate at which that share of the requests meets the SLO."""
    with job.interrupts.handled():
        found, measured = await find_largest_rate(
            job.measure, start, attainment, job.spec.seed, job.interrupts
        )
    return BenchResults(tuple(measured), found, cut_short=job.interrupts.requested)


TryLoad = Callable[[OpenLoop, str, int, int], Awaitable[Measured]]


async def find_largest_rate(
    measure: TryLoad, start: OpenLoop, attainment: float, seed: int, interrupts: Interrupts
) -> tuple[MaxRate, list[Measured]]:
    """The search ends early on Ctrl-C, or when the rate is too high for the generator."""
    measured: list[Measured] = []
    search = search_max_rate(start.rate_per_s, attainment)
    sent: TrialOutcome | StopSearch | None = None
    while True:
        try:
            trial = next(search) if sent is None else search.send(sent)
        except StopIteration as ended:
            result: MaxRate = ended.value
            return result, measured
        number = len(measured) + 1
        load = replace(start, rate_per_s=trial.rate_per_s)
        label = f"trial {number}, {significant(load.rate_per_s)}/s"
        try:
            # A repeated trial at the same rate must send different requests.
            measured.append(await measure(load, label, trial.requests, seed + number))
            sent = _outcome(measured[-1])
        except asyncio.CancelledError:
            if not interrupts.forgives():
                raise
        if interrupts.requested:
            sent = StopSearch("interrupted")


def _outcome(measured: Measured) -> TrialOutcome | StopSearch:
    report = measured.report
    if report.void:
        return StopSearch(f"the load generator cannot keep up: {report.void[0]}")
    met = [meets(timeline, report.slo) for timeline in measured.counted]
    if not met:
        return StopSearch("no request was counted: lower --warm-up")
    return TrialOutcome(
        met=sum(met),
        offered=len(met),
        settled=report.window.settled,
        clustering=clustering_of(met),
        answered=sum(e2e_s(timeline) is not None for timeline in measured.counted),
        mean_open=sum(timeline.ended_s for timeline in measured.run.timelines) / measured.run.wall_s,
    )


def parse_sweep(text: str, spacing: Spacing, burstiness: float) -> tuple[Load, ...]:
    """`rate=1,2,4` or `concurrency=1,4,16` as loads."""
    name, _, values = text.partition("=")
    try:
        if name == "rate":
            return tuple(OpenLoop(float(value), spacing, burstiness) for value in values.split(","))
        if name == "concurrency":
            return tuple(ClosedLoop(int(value)) for value in values.split(","))
    except ValueError:
        pass
    raise UsageError(f"--sweep {text!r}", hint="write rate=1,2,4 or concurrency=1,4,16")
