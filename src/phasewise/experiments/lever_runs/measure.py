"""Measures levers case by case: starts engines, reads their facts, compares rows, measures the noise floor.

Results are written to the results file at once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from phasewise.core.errors import PhasewiseError
from phasewise.experiments.compare.runner import Measure, never
from phasewise.experiments.lever_runs.blocks import Blocks, Side, StoppedEarly
from phasewise.experiments.lever_runs.engine_facts import EngineSizes
from phasewise.experiments.lever_runs.engines import Engines, RunningEngine, Say
from phasewise.experiments.lever_runs.handicap_proxy import passing_through
from phasewise.experiments.lever_runs.paging import PAGED_TRAFFIC, count_waste
from phasewise.experiments.levers.agenda import (
    Effort,
    answers_left,
    controls_left,
    floor_reason,
    left_to_do,
    measurable,
    metrics_of,
    metrics_of_floor,
    restart_left,
    seconds_left,
    seconds_of_floor,
    seconds_of_row,
    steps_left,
)
from phasewise.experiments.levers.cases import BASE, BASE_AGAIN, RESTARTED
from phasewise.experiments.levers.catalogue import Case, EngineSpec, Row, Workload
from phasewise.experiments.levers.results import CaseResult, Outputs, ResultsFile, RowResult
from phasewise.experiments.levers.workloads import ONE_STREAM

__all__ = ["LeverRun", "LeverTools", "StoppedEarly"]


@dataclass(frozen=True, slots=True)
class LeverTools:
    """The operations of a run.

    `handicapped` puts a spec's handicap in front of an engine's address, `passing` a proxy that takes nothing
    away: beside a stand-in, both sides pay for the hop. `outputs` compares the answers of two addresses to a
    case's probe, `facts` reads an engine's own report.
    """

    measure: Measure
    handicapped: Callable[[EngineSpec, str], AbstractAsyncContextManager[str]]
    outputs: Callable[[Case, str, str, Effort], Awaitable[Outputs]]
    facts: Callable[[RunningEngine], Awaitable[EngineSizes]]
    say: Say
    forgives: Callable[[], bool] = never
    passing: Callable[[str], AbstractAsyncContextManager[str]] = passing_through


@dataclass(slots=True)
class LeverRun:
    """One run through the cases; what the results file already has is skipped."""

    cases: Sequence[Case]
    effort: Effort
    file: ResultsFile
    engines: Engines
    tools: LeverTools
    _expected_s: float = 0.0
    _took_s: float = 0.0
    _begun: int = 0
    _blocks: Blocks = field(init=False)

    def __post_init__(self) -> None:
        seed = self.file.results.circumstances.seed
        self._blocks = Blocks(self.tools.measure, self.effort, seed, self.tools.forgives)

    async def run(self) -> None:
        """Measure all that is left; StoppedEarly when a block was cut short."""
        pending = [case for case in measurable(self.cases, self.file.results) if self._pending(case)]
        if pending:
            # Every case needs the base engine: without it, its error is the result.
            await self.engines.need((BASE,), [*self._specs(pending)])
        for place, case in enumerate(self.cases):
            await self._measure_case(case, self.cases[place + 1 :])
        await self._measure_restart()

    async def _measure_case(self, case: Case, later: Sequence[Case]) -> None:
        device = self.file.results.circumstances.device
        if not case.runs_on(device):
            self.file.add(not_measured={case.name: f"an engine for {device} has no such choice"})
            return
        if not self._pending(case):
            return
        with self._reasons(case.name, case.title):
            await self.engines.need((case.off, case.on), [*self._specs(later)])
            async with self._reached(case, case.off) as off, self._reached(case, case.on) as on:
                await self._measure_at(case, off, on)

    @asynccontextmanager
    async def _reached(self, case: Case, spec: EngineSpec) -> AsyncIterator[Side]:
        """One side of a case, with the proxy in front of its engine."""
        engine = self.engines.engine(spec)
        beside_a_stand_in = case.off.handicap is not None or case.on.handicap is not None
        if spec.handicap is None and beside_a_stand_in:
            before = self.tools.passing(engine.url)
        else:
            before = self.tools.handicapped(spec, engine.url)
        async with before as url:
            yield Side(engine, url)

    @contextmanager
    def _reasons(self, key: str, title: str) -> Iterator[None]:
        """Record an error as the reason and go on: one unsupported case must not end the run."""
        try:
            yield
        except PhasewiseError as error:
            hint = f" (hint: {error.hint})" if error.hint else ""
            self.tools.say(f"not measured: {title}: {error.message}{hint}")
            self.file.add(not_measured={key: error.message})

    def _pending(self, case: Case) -> bool:
        results = self.file.results
        if case.by_counters:
            return results.paging is None
        left = left_to_do(case, results) or self._floors_left(case)
        return bool(left) or answers_left(case, results)

    def _floors_left(self, case: Case) -> list[Workload]:
        asked = controls_left(self.cases, self.effort, self.file.results)
        return [workload for workload in asked if any(workload == row.workload for row in case.rows)]

    def _specs(self, cases: Sequence[Case]) -> Iterator[EngineSpec]:
        """The engines that are needed next, in order."""
        for case in measurable(cases, self.file.results):
            if self._pending(case):
                yield from (case.off, case.on)

    async def _measure_at(self, case: Case, off: Side, on: Side) -> None:
        if case.by_counters:
            await self._count_blocks(case)
            return
        for row in left_to_do(case, self.file.results):
            with self._reasons(case.key(row), f"{case.title}, {row.workload.name}"):
                await self._measure_row(case, row, off, on)
        if answers_left(case, self.file.results):
            self.file.add(cases={case.engines_key: await self._facts(case, off, on)})
        for workload in self._floors_left(case):
            with self._reasons(floor_reason(workload.key), f"noise floor, {workload.name}"):
                await self._measure_floor(workload)

    async def _measure_row(self, case: Case, row: Row, off: Side, on: Side) -> None:
        label = f"{case.title}, {row.workload.name}"
        self._announce(label)
        result = await self._blocks.compare(row.workload, metrics_of(row), off, on, label)
        self._learn(result, seconds_of_row(self.effort, row.workload))
        self.file.add(rows={case.key(row): result})

    async def _measure_floor(self, workload: Workload) -> None:
        label = f"noise floor, {workload.name}"
        self._announce(label)
        base, metrics = self._direct(BASE), metrics_of_floor(self.cases, workload)
        result = await self._blocks.compare(workload, metrics, base, base, label)
        self._learn(result, seconds_of_floor(self.effort, workload))
        self.file.add(floors={workload.key: result})

    async def _measure_restart(self) -> None:
        """The base engine against another process of the same, as a lever's two engines are two processes."""
        if not restart_left(measurable(self.cases, self.file.results), self.effort, self.file.results):
            return
        label = "noise floor, another start of the same engine"
        with self._reasons(floor_reason(RESTARTED), label):
            await self.engines.need((BASE, BASE_AGAIN))
            self._announce(label)
            metrics = metrics_of_floor(self.cases, ONE_STREAM)
            sides = (self._direct(BASE), self._direct(BASE_AGAIN))
            self.file.add(floors={RESTARTED: await self._blocks.compare(ONE_STREAM, metrics, *sides, label)})

    def _direct(self, spec: EngineSpec) -> Side:
        engine = self.engines.engine(spec)
        return Side(engine, engine.url)

    async def _count_blocks(self, case: Case) -> None:
        self._announce(case.title)
        engine = self.engines.engine(BASE)
        facts = await self.tools.facts(engine)
        run = await self._blocks.run(PAGED_TRAFFIC, engine.url, PAGED_TRAFFIC.least_requests, case.title)
        self.file.add(paging=count_waste(run, facts, time.time()))

    async def _facts(self, case: Case, off: Side, on: Side) -> CaseResult:
        known = [await self.tools.facts(side.engine) for side in (off, on)]
        if known[0].attention_backend:
            self.file.add(attention_backend=known[0].attention_backend)
        self.tools.say(f"{case.title}: reading answers")
        # A proxy that takes nothing away changes no answer, and an engine's own address is read only once.
        sides = ((case.off, off), (case.on, on))
        off_url, on_url = [side.url if spec.handicap else side.engine.url for spec, side in sides]
        return CaseResult(
            kv_tokens_off=known[0].kv_tokens,
            kv_tokens_on=known[1].kv_tokens,
            outputs=await self.tools.outputs(case, off_url, on_url, self.effort),
        )

    def _learn(self, result: RowResult, expected_s: float) -> None:
        """Remember how much longer or shorter than expected this machine takes."""
        self._took_s += result.took_s
        self._expected_s += expected_s

    def _announce(self, label: str) -> None:
        left_s = seconds_left(self.cases, self.effort, self.file.results)
        if self._expected_s:
            left_s *= self._took_s / self._expected_s
        self._begun += 1
        total = self._begun - 1 + steps_left(self.cases, self.effort, self.file.results)
        self.tools.say(f"[{self._begun}/{total}] {label} (about {max(left_s / 60, 1):.0f} min left)")
