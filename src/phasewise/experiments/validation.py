"""Runs the steps of a validation on one fleet and on changed copies of it; a step that fails is reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phasewise.benchmark.calibrate.calibrate import CalibrateSpec
from phasewise.benchmark.calibrate.result import Calibration
from phasewise.benchmark.compare.arms import FleetsInTurn
from phasewise.benchmark.compare.compare import ComparePlan, Measure, compare_arms
from phasewise.benchmark.compare.verdict import METRICS, Rules
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec
from phasewise.benchmark.statistics.comparison import FEWEST_PAIRS
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import CONTEXT_MARGIN_TOKENS, PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.core.errors import ConfigError, FleetError, MeasurementError, PhasewiseError
from phasewise.core.slo import DEFAULT_SLO, Slo
from phasewise.core.timeline import Outcome as RequestOutcome
from phasewise.costs.fit.step import StepKind, StepWork, chunk_pairs, decoding
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.diagnose import Known, find_cause
from phasewise.diagnosis.gather.own_run import concurrency_of, observed
from phasewise.diagnosis.gather.target import identify
from phasewise.experiments.fleet_change import FleetChange, fleet_with_settings
from phasewise.experiments.validation_claims import StepResult, without_names
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.local.run_files import RunPaths, read_state

Figures = dict[str, float | int | str | None]
Traffic = tuple[int, int | tuple[int, int], int, int, int]
LEVERS: dict[str, tuple[str, str, Traffic]] = {
    "prefix_cache": ("prefix_cache=true", "ttft_p50", (1024, 8, 1, 4, 960)),
    "chunk_size": ("max_num_batched_tokens=512", "itl_p99", (900, (8, 24), 3, 12, 0)),
}
"""The setting, the metric that it lowers, and its traffic, as the arguments of `traffic`."""
FAULTS = {"healthy": "", "long_prompts": "", "prefix_cache_off": "", "batch_cap_too_low": "max_num_seqs=1"}
STEPS = ("calibration", *FAULTS, *LEVERS)
LEAST_S = 20.0
"""A step with less time than this is not begun."""
CALIBRATION_S = 240.0
PLANTED_S, FEWEST_PLANTED, MOST_PLANTED = 30.0, 9, 400
TTFT_STEPS, TPOT_STEPS, TYPICAL_CONTEXT_TOKENS, CHUNK_TOKENS = 16, 2.0, 256, 2048
LONG, LONG_ENOUGH = 3.0, 1.5
"""A long prompt takes three times the objective of TTFT, or at least 1.5 times where none longer fits."""


def traffic(
    prompt: int, answer: int | tuple[int, int], at_once: int, requests: int, shared: int = 0
) -> PlanSpec:
    """Prompts of one length in a closed loop; the first `shared` tokens of all are the same."""
    output = Lengths.fixed(answer) if isinstance(answer, int) else Lengths(sum(answer) // 2, 0.5, *answer)
    shape = Shape("planned", Lengths.fixed(prompt), output, shared, 1.0 if shared else 0.0)
    return PlanSpec(source=shape, load=ClosedLoop(at_once), requests=requests)


def prefill_s(cost: Callable[[StepWork], float], tokens: int) -> float:
    """How long a prompt takes alone."""
    sizes = ((min(CHUNK_TOKENS, tokens - done), done) for done in range(0, tokens, CHUNK_TOKENS))
    return sum(cost(StepWork(size, 0, 1, chunk_pairs(size, done), 0)) for size, done in sizes)


def planted_traffic(step: str, cost: Callable[[StepWork], float], context: int) -> tuple[PlanSpec, Slo]:
    """Traffic that is easy or slow on a machine with these step costs, and its objective.

    A machine on which nothing is wrong meets the objective, which counts lone decode steps, with margin.
    """

    def token_s(streams: int) -> float:
        return cost(decoding([TYPICAL_CONTEXT_TOKENS] * streams))

    def planned(prompt: int, answer: int, clients: int, request_s: float, shared: int = 0) -> PlanSpec:
        requests = clients * max(round(PLANTED_S / request_s), 1)
        return traffic(prompt, answer, clients, min(max(requests, FEWEST_PLANTED), MOST_PLANTED), shared)

    slo = Slo(ttft_s=TTFT_STEPS * token_s(1), tpot_s=TPOT_STEPS * token_s(1))
    if step == "healthy":
        return planned(96, 32, 2, prefill_s(cost, 96) + 32 * token_s(2)), slo
    if step == "batch_cap_too_low":
        return planned(64, 24, 8, 8 * (prefill_s(cost, 64) + 24 * token_s(1))), slo
    most_tokens = context - 8 - CONTEXT_MARGIN_TOKENS
    lengths = range(8, most_tokens, 8)
    tokens = next((size for size in lengths if prefill_s(cost, size) >= LONG * slo.ttft_s), most_tokens)
    if prefill_s(cost, tokens) < LONG_ENOUGH * slo.ttft_s:
        raise MeasurementError(
            f"the longest prompt that fits ({tokens:,} tokens) is too short to miss the objective here",
            hint="validate a larger model, or set levers.max_model_len higher",
        )
    shared = int(0.9 * tokens) if step == "prefix_cache_off" else 0
    return planned(tokens, 8, 1, prefill_s(cost, tokens) + 8 * token_s(1), shared), slo


@dataclass(slots=True)
class ValidationRun:
    """One run; results are kept as they come."""

    fleet: FleetConfig
    home: Path
    scratch: Path
    seed: int
    fleets: FleetsInTurn
    measure: Measure
    calibrate: Callable[[str, CalibrateSpec], Awaitable[Calibration]]
    context_tokens: int
    on_cpu: bool
    say: Callable[[str], None]
    stopped: Callable[[], bool]
    results: list[StepResult] = field(default_factory=list)
    _fit: StepFit | None = None

    async def run(self, steps: Sequence[str], budget_s: float) -> None:
        """Try every step; an error is its result, and a cancellation ends the run."""
        ends_s = time.monotonic() + budget_s
        for place, step in enumerate(steps, 1):
            if self.stopped():
                return
            began_s, why = time.monotonic(), ""
            figures: Figures = {}
            try:
                if (left_s := ends_s - began_s) < LEAST_S:
                    raise MeasurementError(f"{max(left_s, 0):.0f} s were left for it: give more --minutes")
                self.say(
                    f"[{place}/{len(steps)}] {step.replace('_', ' ')} ({left_s / 60:.0f} min left in all)"
                )
                async with asyncio.timeout(left_s):
                    figures = await self._figures(step)
            except TimeoutError:
                why = "there was too little time for it: give more --minutes"
            except PhasewiseError as error:
                why = without_names(str(error))
            if why:
                self.say(f"not tried: {step.replace('_', ' ')}: {why}")
            took_s = round(time.monotonic() - began_s, 1)
            self.results.append(StepResult(step=step, why=why, took_s=took_s, figures=figures))

    async def _figures(self, step: str) -> Figures:
        if step == "calibration":
            return await self._calibrate()
        return await (self._plant(step) if step in FAULTS else self._pull(*LEVERS[step]))

    def _file(self, setting: str = "") -> tuple[Path, str]:
        """The fleet, with this setting if one is given, as a file, and the name under which it runs."""
        name = f"validate-{setting.partition('=')[0].replace('_', '-') or 'base'}"
        fleet = self.fleet
        if setting:
            fleet = fleet_with_settings(fleet, [setting], on_cpu=self.on_cpu).fleet
        return FleetChange(fleet, ()).write(self.scratch, name), name

    async def _engine(self, setting: str = "") -> str:
        """The address of the engine, which is started unless it runs."""
        file, name = self._file(setting)
        async with self.fleets.arm(file, name).serving():
            state = read_state(RunPaths(self.home, name))
        if state is None:
            raise FleetError(f"fleet {name} was stopped from outside", hint="run the command again")
        return state.engines[0].url

    async def _run(self, url: str, plan: PlanSpec, label: str) -> BenchRun:
        run = await self.measure(url, RunSpec(plan, self.seed), label)
        if run.cut_short:
            raise asyncio.CancelledError
        if any(timeline.outcome is not RequestOutcome.SUCCEEDED for timeline in run.timelines):
            raise MeasurementError("not every request was answered", hint="read the engine's log")
        return run

    async def _calibrate(self) -> Figures:
        spec = CalibrateSpec(budget_s=CALIBRATION_S, seed=self.seed)
        found = await self.calibrate(await self._engine(), spec)
        self._fit, form = found.fit, found.form
        fits = "open" if form.fits is None else "yes" if form.fits else "no"
        errors = {f"{kind.value}_error": found.fit.held_out_error(kind) for kind in StepKind}
        counts = {"steps": found.fit.observations, "cells": len(form.cells), "cells_missed": len(form.missed)}
        return {"source": found.seen, "form_fits": fits, **counts, **errors}

    async def _plant(self, step: str) -> Figures:
        if self._fit is None:
            raise MeasurementError("its sizes follow from the calibration, which has no result")
        plan, slo = planted_traffic(step, self._fit.cost, self.context_tokens)
        url, label = await self._engine(FAULTS[step]), step.replace("_", " ")
        concurrency = concurrency_of(RunSpec(plan, self.seed))
        await self._run(url, replace(plan, requests=concurrency), f"{label}, warm-up")
        async with observed(await identify(url, None), None) as watch:
            evidence = await watch.evidence(await self._run(url, plan, label))
        verdict = find_cause(evidence, slo, Known(self._fit, concurrency=concurrency))
        start, stream, top = verdict.summary.start, verdict.summary.stream, verdict.top
        late = 0.0 if start is None or not start.requests else start.late / start.requests
        slow = 0.0 if stream is None or not stream.streams else stream.slow / stream.streams
        unexplained_s = None if start is None else start.unexplained_abs_p50_s
        return {
            "expected": step,
            "said": str(verdict.ruling if top is None else top.cause),
            "confidence": "" if top is None else str(top.confidence),
            "requests": verdict.summary.workload.requests,
            "late_share": round(max(late, slow), 3),
            "objective_ttft_ms": 1000 * slo.ttft_s,
            "objective_tpot_ms": 1000 * slo.tpot_s,
            "unexplained_ttft_share": None if start is None else start.unexplained_share_p50,
            "unexplained_ttft_ms": None if unexplained_s is None else 1000 * unexplained_s,
            "unexplained_tpot_share": None if stream is None else stream.unexplained_share_p50,
        }

    async def _pull(self, setting: str, metric: str, shape: Traffic) -> Figures:
        """What `phasewise compare FLEET --set SETTING` does, for one metric."""
        rules = Rules(DEFAULT_SLO, 1, metrics=tuple(each for each in METRICS if each.name == metric))
        plan = ComparePlan(RunSpec(traffic(*shape), self.seed), rules, control_pairs=0, pairs=FEWEST_PAIRS)
        arms = [self.fleets.arm(*self._file(changed)) for changed in ("", setting)]
        result = await compare_arms(arms[0], arms[1], plan, self.measure, self.say)
        if result.cut_short:
            raise asyncio.CancelledError
        found = result.of(metric)
        low, high = (None, None) if found.interval is None else (found.interval.low, found.interval.high)
        figures = {"a_s": found.a, "b_s": found.b, "change": found.change, "low": low, "high": high}
        return {
            "setting": setting,
            "metric": metric,
            "pairs": result.pairs,
            "reason": found.reason,
            **figures,
        }


def base_fleet(fleet: FleetConfig) -> FleetConfig:
    """The fleet with its prefix cache off and an engine that any client reaches; ConfigError for several."""
    if len(fleet.pools) > 1 or fleet.pools[0].replicas > 1:
        raise ConfigError(
            "a validation needs a fleet of one engine", hint="give a file with one pool of 1 replica"
        )
    (pool,) = fleet.pools
    levers = pool.levers.model_copy(update={"prefix_cache": False})
    pools = (pool.model_copy(update={"levers": levers}),)
    return fleet.model_copy(update={"pools": pools, "engine_keys": False})
