"""`phasewise compare FLEET --set` and `--fix`: a fleet file against a changed copy, one fleet at a time."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import TypeVar

from phasewise import __version__
from phasewise.benchmark.compare.arms import (
    FleetArm,
    FleetsInTurn,
    fleets_in_turn,
    reject_occupied,
    running_fleets,
)
from phasewise.benchmark.compare.compare import ComparePlan, compare_arms
from phasewise.benchmark.compare.ledger import LedgerFile, Prediction
from phasewise.benchmark.compare.verdict import ComparisonResult
from phasewise.cli.engine import current_engine
from phasewise.cli.measuring import Interrupts
from phasewise.cli.options import say
from phasewise.clients.host import usable_cores
from phasewise.core.errors import ConfigError, PhasewiseError
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.advice.fix import Fix
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.gather.own_run import concurrency_of, observed
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.verdict import Verdict
from phasewise.experiments.fix_trial import (
    Diagnosed,
    FixTrial,
    FixTrialPlan,
    FixTrialTools,
    Setting,
    try_top_fix,
)
from phasewise.experiments.fleet_change import FleetChange, fleet_with_settings
from phasewise.fleet.config import LLAMA_CPP, FleetConfig, Levers, load_fleet, phasewise_home
from phasewise.fleet.engines.command import levers_of
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.local.placement import gpu_names, this_machine
from phasewise.fleet.local.run_files import find_admin_key
from phasewise.report.console import out
from phasewise.report.diagnosis.screen import show
from phasewise.report.ledger_view import announcement, duration_words

WARM_UP_REQUESTS = 4
"""Requests that are sent to a fleet that was just started, so that it is not measured cold."""
WARM_UP_SEEDS = 20_000
"""The distance of their seeds from those of the comparison, so that no request repeats."""
_Result = TypeVar("_Result")
POOLS_DIFFER = "the pools of this fleet have different levers, and a replay needs identical engines"


async def compare_with_settings(file: Path, settings: Sequence[str], plan: ComparePlan) -> ComparisonResult:
    """Compare a fleet with a copy that has these settings; Ctrl-C keeps the complete pairs."""
    trial = _FleetTrial(file, plan)
    change = fleet_with_settings(trial.fleet, settings, on_cpu=trial.device == "cpu")
    for fleet in (trial.fleet, change.fleet):
        trial.reject(fleet)
    for line in change.lines:
        say(f"B has {line}")
    with tempfile.TemporaryDirectory(prefix="phasewise-compare-") as scratch:
        changed = change.write(Path(scratch), f"{file.stem}-changed")

        async def compare(fleets: FleetsInTurn) -> ComparisonResult:
            a = fleets.arm(file, "compare-a")
            b = fleets.arm(changed, "compare-b", f"{file.name} with {', '.join(settings)}")
            return await compare_arms(a, b, plan, trial.interrupts.measure, say, trial.interrupts.forgives)

        return await trial.run(compare)


async def try_fix(
    file: Path, plan: ComparePlan, ledger: LedgerFile, fit: StepFit | None, *, as_json: bool
) -> FixTrial:
    """Try the top fix of a fleet file; Ctrl-C keeps the complete pairs."""
    trial = _FleetTrial(file, plan)
    if trial.engine is None:
        raise ConfigError(
            "--fix predicts the effect of a fix on vLLM, and this fleet has llama.cpp",
            hint="try the change itself: `phasewise compare FLEET --set LEVER=VALUE`",
        )
    trial.reject(trial.fleet)
    ledger.check_writable()
    version = f"vllm {trial.engine.vllm_version}"
    setting = Setting(_machine(trial.engine), trial.fleet.model, version, __version__)
    fix_plan = FixTrialPlan(file, trial.fleet, setting, plan, on_cpu=trial.device == "cpu")
    diagnosis = _Diagnosis(trial, fit, as_json)
    return await trial.run(lambda fleets: try_top_fix(fix_plan, diagnosis.tools(fleets, ledger)))


def _machine(engine: EngineEnvironment) -> str:
    gpus = gpu_names(os.environ) if engine.device != "cpu" else ()
    cores = f"{platform.machine()}, {len(usable_cores())} cores"
    return ", ".join((f"{platform.system()} {cores}", *gpus))


class _FleetTrial:
    """A fleet file whose fleets are started in turn on this machine, with live progress."""

    def __init__(self, file: Path, plan: ComparePlan) -> None:
        self.file, self.plan, self.interrupts = file, plan, Interrupts()
        self.fleet, self.home = load_fleet(file), phasewise_home(os.environ)
        self.engine = None if self.fleet.has(LLAMA_CPP) else current_engine()
        # Now, before a fleet of this trial runs: those run one at a time and make room for each other.
        self.others = running_fleets(self.home)
        self.began_s = time.monotonic()
        self.warm_s: float | None = None

    @property
    def device(self) -> str:
        """What the engines run on; llama.cpp runs on the CPU."""
        return "cpu" if self.engine is None else self.engine.device

    def reject(self, wanted: FleetConfig) -> None:
        """FleetError if the fleet needs what a fleet holds that ran before this trial."""
        reject_occupied(wanted, this_machine(self.device), self.others)

    async def run(self, work: Callable[[FleetsInTurn], Awaitable[_Result]]) -> _Result:
        """The result of the work; SIGTERM and SIGHUP also stop its fleets, so that none is left behind."""
        done: _Result | None = None
        with self.interrupts.handled(SIGTERM, SIGHUP):
            try:
                async with fleets_in_turn(
                    lambda file, name: FleetArm(file, name, say), self._warm_up
                ) as fleets:
                    done = await work(fleets)
            except (asyncio.CancelledError, PhasewiseError) as trouble:
                # An error while the last fleet stops must not discard hours of measurements.
                if done is None or not (self.interrupts.forgives() or isinstance(trouble, PhasewiseError)):
                    raise
                say(f"while stopping the last fleet: {str(trouble) or 'interrupted'}")
        return done

    async def _warm_up(self, url: str) -> None:
        spec = self.plan.spec
        few = replace(spec.plan, requests=WARM_UP_REQUESTS)
        await self.interrupts.measure(
            url, replace(spec, plan=few, seed=spec.seed + WARM_UP_SEEDS), "warming up"
        )
        if self.interrupts.requested:
            # A stopped run returns what it has, and a warm-up has no result to keep.
            raise asyncio.CancelledError
        if self.warm_s is None:
            self.warm_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    """Diagnoses the fleet under the load, and shows what is tried."""

    trial: _FleetTrial
    fit: StepFit | None
    as_json: bool

    def tools(self, fleets: FleetsInTurn, ledger: LedgerFile) -> FixTrialTools:
        """The tools of `try_top_fix`."""
        return FixTrialTools(
            arm=fleets.arm,
            diagnose=self._diagnose,
            measure=self.trial.interrupts.measure,
            ledger=ledger,
            clock=time.time,
            show=self._show,
            announce=self._announce,
            say=say,
            forgives=self.trial.interrupts.forgives,
            reject=self.trial.reject,
        )

    async def _diagnose(self, url: str) -> Diagnosed:
        trial, plan = self.trial, self.trial.plan
        admin_key, levers = find_admin_key(url, trial.home), _levers_of(trial.fleet)
        async with observed(await identify(url, admin_key), admin_key) as watch:
            run = await trial.interrupts.measure(url, plan.spec, "the load to diagnose")
            evidence = await watch.evidence(run)
        known = Known(self.fit, levers, concurrency_of(plan.spec), plan.rules.warm_up_requests)
        verdict = diagnose(evidence, plan.rules.slo, known)
        if levers is None:
            verdict = _unpredictable(verdict, POOLS_DIFFER)
        return Diagnosed(verdict, evidence, cut_short=trial.interrupts.requested)

    def _show(self, diagnosed: Diagnosed) -> None:
        if not self.as_json:
            show(out, diagnosed.verdict, f"{self.trial.file} under a synthetic load")

    def _announce(self, fix: Fix, change: FleetChange, predictions: Sequence[Prediction]) -> None:
        plan, warm_s = self.trial.plan, self.trial.warm_s or self.trial.began_s
        start_s, block_s = warm_s - self.trial.began_s, time.monotonic() - warm_s
        duration = duration_words(plan.pairs or plan.max_pairs, plan.control_pairs, start_s, block_s)
        for line in announcement(fix, change, predictions, duration):
            say(line)


def _levers_of(fleet: FleetConfig) -> Levers | None:
    """The levers that all pools share; None if pools differ."""
    first, *others = (levers_of(pool) for pool in fleet.pools)
    return first if all(levers == first for levers in others) else None


def _unpredictable(verdict: Verdict, why: str) -> Verdict:
    advice = verdict.advice
    if advice is None:
        return verdict
    fixes = tuple(replace(fix, effect=None, unpredictable=why) for fix in advice.fixes)
    return replace(verdict, advice=replace(advice, fixes=fixes))
