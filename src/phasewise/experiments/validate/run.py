"""Runs the steps of a validation within its time; a step that fails or does not fit is reported as such."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median

from phasewise.core.errors import FleetError, MeasurementError, PhasewiseError
from phasewise.core.units import elapsed
from phasewise.costs.fit.step import StepKind
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.diagnose import Known, find_cause
from phasewise.diagnosis.finding import Cause
from phasewise.diagnosis.gather.own_run import concurrency_of, observed
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.verdict import Ruling, Verdict
from phasewise.experiments.calibrate.calibrate import CalibrateSpec
from phasewise.experiments.calibrate.result import Calibration
from phasewise.experiments.compare.runner import Measure
from phasewise.experiments.lever_runs.blocks import Blocks, Side, StoppedEarly
from phasewise.experiments.lever_runs.engines import Engines, Say
from phasewise.experiments.levers.agenda import QUICK, metrics_of
from phasewise.experiments.levers.cases import BASE, CASES, ONE_AT_A_TIME
from phasewise.experiments.levers.catalogue import Case, EngineSpec
from phasewise.experiments.validate.crosscheck import METRICS, BenchLoad, ToolRun, noise, own_run, ratio
from phasewise.experiments.validate.environment import OthersWatch
from phasewise.experiments.validate.plan import LEAST_S, Step, deadlines_s
from phasewise.experiments.validate.private import PrivateNames
from phasewise.experiments.validate.record import (
    BenchFigures,
    CalibrationFigures,
    FaultFigures,
    LeverFigures,
    Measured,
    StepResult,
)
from phasewise.experiments.validate.sizes import PlantedTraffic, PlantSizes
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import RunSpec
from phasewise.loadgen.statistics.comparison import FEWEST_PAIRS
from phasewise.loadgen.workload.plan import PlanSpec

EFFORT = replace(QUICK, name="validate", pairs=6, block_s=2.0)
ROUND = ("vllm", "phasewise", "phasewise", "vllm")
ROUNDS = 2
BENCH_RUN_S = 20.0
"""How long a run lasts if its step has time: a fast engine gets more requests."""
BENCH_WARM_UP_REQUESTS = 8
CALIBRATION_S = 240.0
CALIBRATION_SHARE = 0.8
"""The rest of its time is for the start of an engine and for the fit."""
PLANTED_SHARE = 0.6
"""The rest of a fault's time is for the requests that run at its end and for the verdict."""
START_HINT = (
    "try a smaller --model, --context or --kv-cache-memory-bytes; the engine's log is in the data folder, "
    "`phasewise --version --verbose` shows where"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Traffic with a fault in it, or without: the engine, the right verdict, the sizes."""

    engine: EngineSpec
    expected: str
    traffic: Callable[[PlantSizes], PlantedTraffic]


FAULTS = {
    Step.HEALTHY: Fault(BASE, Ruling.HEALTHY, lambda sizes: sizes.short(2, 96, 32, at_once=2)),
    Step.LONG_PROMPTS: Fault(BASE, Cause.LONG_PROMPTS, lambda sizes: sizes.long(8, shared=False)),
    Step.PREFIX_CACHE_OFF: Fault(BASE, Cause.PREFIX_CACHE_OFF, lambda sizes: sizes.long(8, shared=True)),
    Step.BATCH_CAP: Fault(
        ONE_AT_A_TIME.off, Cause.BATCH_CAP_LOW, lambda sizes: sizes.short(8, 64, 24, at_once=1)
    ),
}
LEVERS = {
    Step.PREFIX_CACHE: next(case for case in CASES if case.name == "prefix_cache"),
    Step.CHUNK_SIZE: next(case for case in CASES if case.name == "chunk_512"),
}


@dataclass(frozen=True, slots=True)
class ValidationTools:
    """The operations of a run; `check` looks at the environment, `forgives` says whether Ctrl-C cancelled."""

    engines: Engines
    check: Callable[[], tuple[str, ...]]
    measure: Measure
    vllm_bench: Callable[[str, BenchLoad, int], Awaitable[ToolRun]]
    calibrate: Callable[[str, CalibrateSpec], Awaitable[Calibration]]
    say: Say
    private: PrivateNames
    stopped: Callable[[], bool]
    forgives: Callable[[], bool]


@dataclass(slots=True)
class ValidationRun:
    """One run; figures and results are kept as they come."""

    steps: Sequence[Step]
    budget_s: float
    context_tokens: int
    seed: int
    measured: Measured = field(default_factory=Measured)
    results: list[StepResult] = field(default_factory=list)
    interrupted: bool = False
    tools: ValidationTools = field(init=False)
    _step_ends_s: float = 0.0
    _fit: StepFit | None = None
    _unstarted: dict[str, PhasewiseError] = field(default_factory=dict)

    async def run(self, tools: ValidationTools) -> None:
        """Try every step; Ctrl-C leaves the others out."""
        self.tools, began_s = tools, time.monotonic()
        for place, (step, deadline_s) in enumerate(deadlines_s(self.steps, self.budget_s).items(), 1):
            self._step_ends_s = began_s + deadline_s
            left_s = self._step_ends_s - time.monotonic()
            if self.interrupted:
                result = StepResult(step=step, done=False, why="the run was interrupted")
            elif left_s < LEAST_S and step is not Step.ENVIRONMENT:
                why = f"{elapsed(left_s)} were left for it: give more --minutes"
                result = StepResult(step=step, done=False, why=why)
            else:
                whole_s = self.budget_s - (time.monotonic() - began_s)
                self.tools.say(
                    f"[{place}/{len(self.steps)}] {step.replace('_', ' ')} (at most {left_s / 60:.1f} min; "
                    f"{whole_s / 60:.0f} min left in all)"
                )
                result = await self._tried(step, left_s)
            self.results.append(result)

    async def _tried(self, step: Step, left_s: float) -> StepResult:
        began_s, others, why = time.monotonic(), OthersWatch(lambda: self.tools.engines.urls), ""
        notes: tuple[str, ...] = ()
        try:
            async with asyncio.timeout(max(left_s, LEAST_S)):
                notes = await self._do(step)
        except TimeoutError:
            why = f"it took longer than the {elapsed(left_s)} that it had: give more --minutes"
        except PhasewiseError as error:
            why = error.message + (f"; {error.hint}" if error.hint else "")
        except StoppedEarly:
            self.interrupted = True
        except asyncio.CancelledError:
            if not self.tools.forgives():
                raise
            self.interrupted = True
        self.interrupted = self.interrupted or self.tools.stopped()
        if self.interrupted:
            why = why or "the run was interrupted"
        if why:
            self.tools.say(f"not tried: {step.replace('_', ' ')}: {why}")
        took_s = round(time.monotonic() - began_s, 1)
        cleaned = self.tools.private.taken_out
        return StepResult(
            step=step,
            done=not why,
            why=cleaned(why)[:600],
            notes=tuple(map(cleaned, notes)),
            took_s=took_s,
            taken_share=others.share(),
        )

    async def _do(self, step: Step) -> tuple[str, ...]:
        if step is Step.ENVIRONMENT:
            return self.tools.check()
        if step is Step.BENCH:
            await self._bench()
        elif step is Step.CALIBRATION:
            return await self._calibrate()
        elif step in FAULTS:
            await self._plant(step, FAULTS[step])
        else:
            return await self._pull(step, LEVERS[step])
        return ()

    def _keep(self, **figures: object) -> None:
        self.measured = self.measured.model_copy(update=figures)

    def _left_s(self) -> float:
        return self._step_ends_s - time.monotonic()

    async def _need(self, *specs: EngineSpec) -> list[Side]:
        """These engines; one that could not start is not tried again."""
        for spec in specs:
            if spec.name in self._unstarted:
                raise self._unstarted[spec.name]
            try:
                await self.tools.engines.need((spec,))
            except FleetError as error:
                # The hint of a failed start names a scratch file that is gone by then.
                words = f"the engine with {spec.about} did not start: {error.message}"
                self._unstarted[spec.name] = FleetError(words, hint=START_HINT)
                raise self._unstarted[spec.name] from error
        engines = map(self.tools.engines.engine, specs)
        return [Side(engine, engine.url) for engine in engines]

    async def _run(self, url: str, plan: PlanSpec, label: str) -> BenchRun:
        run = await self.tools.measure(url, RunSpec(plan, self.seed), label)
        if run.cut_short:
            raise StoppedEarly
        return run

    async def _bench(self) -> None:
        (side,) = await self._need(BASE)
        # The first run warms the engine's code paths and shows how fast it is; it is not counted.
        load = BenchLoad(requests=BENCH_WARM_UP_REQUESTS)
        warm = await self._run(side.url, load.plan, "bench, warm-up")
        run_s = min(BENCH_RUN_S, self._left_s() / (2 * ROUNDS * len(ROUND)))
        load = load.lasting(run_s, warm.wall_s / BENCH_WARM_UP_REQUESTS)
        runs: dict[str, list[ToolRun]] = {"vllm": [], "phasewise": []}
        for number in range(ROUNDS):
            began_s = time.monotonic()
            for place, tool in enumerate(ROUND):
                label = f"bench, round {number + 1} of {ROUNDS}, {tool}"
                if tool == "vllm":
                    self.tools.say(label)
                    seed = self.seed + number * len(ROUND) + place
                    runs[tool].append(await self.tools.vllm_bench(side.url, load, seed))
                else:
                    runs[tool].append(own_run(await self._run(side.url, load.plan, label)))
            self._keep(bench=bench_figures(load, runs["vllm"], runs["phasewise"]))
            if self._left_s() < 1.3 * (time.monotonic() - began_s):
                break

    async def _calibrate(self) -> tuple[str, ...]:
        (side,) = await self._need(BASE)
        budget_s = min(CALIBRATION_S, CALIBRATION_SHARE * self._left_s())
        found = await self.tools.calibrate(side.url, CalibrateSpec(budget_s=budget_s, seed=self.seed))
        self._fit = found.fit
        self._keep(calibration=calibration_figures(found))
        return (found.no_record,) if found.no_record else ()

    async def _plant(self, step: Step, fault: Fault) -> None:
        if self._fit is None:
            raise MeasurementError(
                "its sizes follow from the calibration, which has no result", hint="see that step"
            )
        traffic = fault.traffic(PlantSizes(self._fit.cost, self.context_tokens))
        (side,) = await self._need(fault.engine)
        label = step.replace("_", " ")
        concurrency = concurrency_of(RunSpec(traffic.plan, self.seed))
        await self._run(side.url, replace(traffic.plan, requests=concurrency), f"{label}, warm-up")
        # A machine that became slower than its calibration gets fewer requests, not none.
        plan = replace(traffic.plan, duration_s=PLANTED_SHARE * self._left_s())
        async with observed(await identify(side.url, None), None) as watch:
            run = await self._run(side.url, plan, label)
            evidence = await watch.evidence(run)
        verdict = find_cause(evidence, traffic.slo, Known(self._fit, concurrency=concurrency))
        figures = fault_figures(step, fault, traffic, verdict)
        self._keep(faults=(*self.measured.faults, figures))

    async def _pull(self, step: Step, case: Case) -> tuple[str, ...]:
        off, on = await self._need(case.off, case.on)
        row = case.rows[0]
        blocks = Blocks(self.tools.measure, EFFORT, self.seed, self.tools.forgives)
        trial = await blocks.run(row.workload, off.url, row.workload.least_requests, f"{case.title}, trial")
        blocks.effort = replace(EFFORT, pairs=pairs_in(self._left_s(), max(trial.wall_s, EFFORT.block_s)))
        result = await blocks.compare(row.workload, metrics_of(row), off, on, case.title)
        figures = LeverFigures(
            lever=step,
            off=case.off.in_words,
            on=case.on.in_words,
            traffic=row.workload.about,
            requests=result.requests,
            pairs=result.pairs,
            effects=result.effects,
        )
        self._keep(levers=(*self.measured.levers, figures))
        return result.remarks


def pairs_in(left_s: float, block_s: float) -> int:
    """How many pairs of blocks fit the time, after trials and warm-ups that take about four blocks."""
    return min(max(int((0.9 * left_s / block_s - 4) / 2), FEWEST_PAIRS), EFFORT.pairs)


# --- Results of other parts as the figures of a report.


def bench_figures(load: BenchLoad, vllm: Sequence[ToolRun], own: Sequence[ToolRun]) -> BenchFigures:
    """Both tools' runs."""

    def milliseconds(runs: Sequence[ToolRun]) -> dict[str, float]:
        return {name: round(median(run.medians_s[name] for run in runs) * 1000, 3) for name in METRICS}

    return BenchFigures(
        prompt_tokens=round(fmean(run.prompt_tokens for run in own)),
        output_tokens=load.output_tokens,
        concurrency=load.concurrency,
        requests=load.requests,
        runs_per_tool=len(vllm),
        void_runs=sum(run.void for run in own),
        phasewise_ms=milliseconds(own),
        vllm_ms=milliseconds(vllm),
        ratio={name: round(ratio(vllm, own, name), 4) for name in METRICS},
        noise={name: round(noise(vllm, own, name), 4) for name in METRICS},
    )


def calibration_figures(found: Calibration) -> CalibrationFigures:
    """A calibration without its address."""
    errors = {kind.value: found.fit.held_out_error(kind) for kind in StepKind}
    return CalibrationFigures(
        source=found.seen,
        steps=found.fit.observations,
        rounds=round(found.rounds, 2),
        cost=asdict(found.fit.cost),
        front_end_s=found.fit.fitted.front_end_s,
        held_out_error={kind: None if error is None else round(error, 4) for kind, error in errors.items()},
        form_fits=found.form.fits,
        cells=len(found.form.cells),
        cells_missed=len(found.form.missed),
    )


def fault_figures(step: Step, fault: Fault, traffic: PlantedTraffic, verdict: Verdict) -> FaultFigures:
    """A verdict in figures and closed words: no evidence in words, which could name anything."""
    start, stream, top = verdict.summary.start, verdict.summary.stream, verdict.top
    late = 0.0 if start is None or not start.requests else start.late / start.requests
    slow = 0.0 if stream is None or not stream.streams else stream.slow / stream.streams

    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1000, 3)

    return FaultFigures(
        fault=step,
        expected=fault.expected,
        said=verdict.ruling if top is None else top.cause,
        confidence="" if top is None else top.confidence,
        traffic=traffic.about,
        requests=verdict.summary.workload.requests,
        late_share=round(max(late, slow), 3),
        objective_ms={"ttft": traffic.slo.ttft_s * 1000, "tpot": traffic.slo.tpot_s * 1000},
        ttft_p50_ms=None if start is None else ms(start.ttft_p50_s),
        tpot_p50_ms=None if stream is None else ms(stream.tpot_p50_s),
        unexplained_ttft_share=None if start is None else start.unexplained_share_p50,
        unexplained_ttft_ms=None if start is None else ms(start.unexplained_abs_p50_s),
        unexplained_tpot_share=None if stream is None else stream.unexplained_share_p50,
    )
