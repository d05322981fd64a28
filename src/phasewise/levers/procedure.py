"""Measures levers case by case: engines up, what is true of them, each row by `compare`, the noise floor.

What is measured goes to the results file at once. How blocks are run, engines started and answers read is
handed in; what the figures mean is findings.py's.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from statistics import fmean

from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec
from phasewise.compare.arms import UrlArm
from phasewise.compare.procedure import ComparePlan, compare_arms
from phasewise.compare.runner import Measure, never
from phasewise.compare.verdict import Rules
from phasewise.errors import MeasurementError, PhasewiseError
from phasewise.levers.agenda import (
    Effort,
    controls_left,
    left_to_do,
    measurable,
    seconds_left,
    seconds_of_row,
    steps_left,
)
from phasewise.levers.cases import BASE
from phasewise.levers.catalogue import LEVER_METRICS, MARGIN, Case, EngineSpec, Row, Workload
from phasewise.levers.engine_facts import EngineFacts
from phasewise.levers.engines import Engines, RunningEngine, Say
from phasewise.levers.paging import PAGED_TRAFFIC, count_waste
from phasewise.levers.results import CaseResult, Outputs, ResultsFile, RowResult, effect_of
from phasewise.model.slo import DEFAULT_SLO


class StoppedEarly(Exception):
    """Somebody ended a block by Ctrl-C; what was whole before it is kept."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the procedure works with.

    `restrained` puts a spec's restraint before an engine's address. `outputs` compares the answers of two
    addresses to what a case's lever acts on, `facts` asks an engine what it says of itself.
    """

    measure: Measure
    restrained: Callable[[EngineSpec, str], AbstractAsyncContextManager[str]]
    outputs: Callable[[Case, str, str, Effort], Awaitable[Outputs]]
    facts: Callable[[RunningEngine], Awaitable[EngineFacts]]
    say: Say
    forgives: Callable[[], bool] = never


@dataclass(slots=True)
class Procedure:
    """One run through the cases; what the results file holds already is left out."""

    cases: Sequence[Case]
    effort: Effort
    file: ResultsFile
    engines: Engines
    tools: Tools
    _expected_s: float = 0.0
    _took_s: float = 0.0
    _begun: int = 0

    async def run(self) -> None:
        """Measure all that is left; StoppedEarly when a block was cut short."""
        pending = [case for case in measurable(self.cases, self.file.results) if self._pending(case)]
        if pending:
            # Every case needs it: without it, its error is the answer.
            await self.engines.need((BASE,), [*self._specs(pending)])
        for place, case in enumerate(self.cases):
            await self._measure_case(case, self.cases[place + 1 :])

    async def _measure_case(self, case: Case, later: Sequence[Case]) -> None:
        results = self.file.results
        device = results.circumstances.device
        if not case.runs_on(device):
            self.file.add(not_measured={case.name: f"an engine for {device} has no such choice"})
            return
        if not self._pending(case):
            return
        with self._reasons(case):
            await self.engines.need((case.off, case.on), [*self._specs(later)])
            async with (
                self.tools.restrained(case.off, self.engines.engine(case.off).url) as off_url,
                self.tools.restrained(case.on, self.engines.engine(case.on).url) as on_url,
            ):
                await self._measure_at(case, off_url, on_url)

    @contextmanager
    def _reasons(self, case: Case, what: str = "") -> Iterator[None]:
        """Keep an error as the reason: what this model or machine does not take must not cost the rest."""
        try:
            yield
        except PhasewiseError as error:
            reason = f"{what}: {error.message}" if what else error.message
            hint = f" (hint: {error.hint})" if error.hint else ""
            self.tools.say(f"{case.title} is not measured: {reason}{hint}")
            self.file.add(not_measured={case.name: reason})

    def _pending(self, case: Case) -> bool:
        results = self.file.results
        if case.by_counters:
            return results.paging is None
        unknown = case.engines_key not in results.cases
        return unknown or bool(left_to_do(case, results)) or bool(self._floors_left(case))

    def _floors_left(self, case: Case) -> list[Workload]:
        asked = controls_left(self.cases, self.effort, self.file.results)
        return [workload for workload in asked if any(workload == row.workload for row in case.rows)]

    def _specs(self, cases: Sequence[Case]) -> Iterator[EngineSpec]:
        """The engines that are needed next, in order."""
        for case in measurable(cases, self.file.results):
            if self._pending(case):
                yield from (case.off, case.on)

    async def _measure_at(self, case: Case, off_url: str, on_url: str) -> None:
        if case.by_counters:
            await self._count_blocks(case)
            return
        for row in left_to_do(case, self.file.results):
            with self._reasons(case, row.workload.name):
                await self._measure_row(case, row, off_url, on_url)
        if case.engines_key not in self.file.results.cases:
            self.file.add(cases={case.engines_key: await self._facts(case, off_url, on_url)})
        for workload in self._floors_left(case):
            with self._reasons(case, f"noise floor, {workload.name}"):
                await self._measure_floor(workload)

    async def _measure_row(self, case: Case, row: Row, off_url: str, on_url: str) -> None:
        label = f"{case.title}, {row.workload.name}"
        self._announce(label)
        result = await self._compare(row.workload, off_url, on_url, self.effort.pairs, label)
        self.file.add(rows={case.key(row): result})

    async def _measure_floor(self, workload: Workload) -> None:
        label = f"noise floor, {workload.name}"
        self._announce(label)
        url = self.engines.engine(BASE).url
        result = await self._compare(workload, url, url, self.effort.control_pairs, label)
        self.file.add(floors={workload.key: result})

    async def _count_blocks(self, case: Case) -> None:
        self._announce(case.title)
        engine = self.engines.engine(BASE)
        facts = await self.tools.facts(engine)
        run = await self._block(PAGED_TRAFFIC, engine.url, PAGED_TRAFFIC.least_requests, case.title)
        self.file.add(paging=count_waste(run, facts, time.time()))

    async def _facts(self, case: Case, off_url: str, on_url: str) -> CaseResult:
        off, on = [await self.tools.facts(self.engines.engine(spec)) for spec in (case.off, case.on)]
        if off.attention_backend:
            self.file.add(attention_backend=off.attention_backend)
        self.tools.say(f"{case.title}: reading answers")
        return CaseResult(
            kv_tokens_off=off.kv_tokens,
            kv_tokens_on=on.kv_tokens,
            outputs=await self.tools.outputs(case, off_url, on_url, self.effort),
        )

    async def _compare(
        self, workload: Workload, off_url: str, on_url: str, pairs: int, label: str
    ) -> RowResult:
        began_s = time.monotonic()
        requests = await self._fill(workload, {off_url, on_url}, label)
        plan = ComparePlan(
            spec=RunSpec(workload.of(requests), self.file.results.circumstances.seed),
            rules=Rules(DEFAULT_SLO, workload.warm_up_requests, margin=MARGIN, metrics=LEVER_METRICS),
            control_pairs=0,
            pairs=pairs,
        )
        measure = _labelled(self.tools.measure, label)
        result = await compare_arms(
            UrlArm(off_url), UrlArm(on_url), plan, measure, forgives=self.tools.forgives
        )
        if result.cut_short:
            raise StoppedEarly
        if result.gave_up:
            raise MeasurementError(result.gave_up, hint="measure on a quieter machine")
        took_s = time.monotonic() - began_s
        self._took_s += took_s
        self._expected_s += seconds_of_row(self.effort, pairs)
        return RowResult(
            effects=tuple(map(effect_of, result.comparisons)),
            requests=requests,
            pairs=result.pairs,
            void_pairs=result.void_pairs,
            remarks=result.remarks,
            took_s=round(took_s, 1),
            measured_unix_s=time.time(),
        )

    async def _fill(self, workload: Workload, urls: set[str], label: str) -> int:
        """How many requests fill a block; finding out also warms engines, whose first requests are slow."""
        trials = [
            await self._block(workload, url, workload.least_requests, f"{label}, trial")
            for url in sorted(urls)
        ]
        return self.effort.block_requests(workload, fmean(run.wall_s for run in trials))

    async def _block(self, workload: Workload, url: str, requests: int, label: str) -> BenchRun:
        spec = RunSpec(workload.of(requests), self.file.results.circumstances.seed)
        run = await self.tools.measure(url, spec, label)
        if run.cut_short:
            raise StoppedEarly
        return run

    def _announce(self, label: str) -> None:
        left_s = seconds_left(self.cases, self.effort, self.file.results)
        if self._expected_s:
            left_s *= self._took_s / self._expected_s
        self._begun += 1
        total = self._begun - 1 + steps_left(self.cases, self.effort, self.file.results)
        self.tools.say(f"[{self._begun}/{total}] {label} (about {max(left_s / 60, 1):.0f} min left)")


def _labelled(measure: Measure, label: str) -> Measure:
    async def measured(url: str, spec: RunSpec, block: str) -> BenchRun:
        return await measure(url, spec, f"{label}, {block}")

    return measured
