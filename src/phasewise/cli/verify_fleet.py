"""`phasewise verify FLEET` with live progress and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGHUP, SIGTERM

from phasewise import __version__
from phasewise.cli.diagnose_outputs import say
from phasewise.cli.engine import current_engine
from phasewise.cli.measuring import measure_with_view
from phasewise.cli.outputs import Interrupts
from phasewise.clients.host import allow_many_streams, usable_cores
from phasewise.core.errors import ConfigError, PhasewiseError
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.advice.fix import Fix
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.gather.own_run import concurrency_of, observed
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.verdict import Verdict
from phasewise.experiments.compare.arms import Arm, FleetArm
from phasewise.experiments.compare.compare import ComparePlan
from phasewise.experiments.verify.exclusive import (
    FleetsInTurn,
    fleets_in_turn,
    reject_occupied,
    running_fleets,
)
from phasewise.experiments.verify.fleet_change import FleetChange
from phasewise.experiments.verify.ledger import Prediction
from phasewise.experiments.verify.ledger_file import LedgerFile
from phasewise.experiments.verify.verify import (
    Diagnosed,
    Setting,
    Verification,
    VerifyPlan,
    VerifyTools,
    verify_top_fix,
)
from phasewise.fleet.config import LLAMA_CPP, FleetConfig, Levers, load_fleet, phasewise_home
from phasewise.fleet.engines.command import levers_of
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.local.placement import gpu_names, this_machine
from phasewise.fleet.local.run_files import find_admin_key
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import RunSpec
from phasewise.report.console import out
from phasewise.report.diagnosis.screen import show
from phasewise.report.verify_view import announcement, duration_words

WARM_UP_REQUESTS = 4
"""Sent to a fleet that was just started, so that it is not measured cold,"""
WARM_UP_SEEDS = 20_000
"""with seeds far from those of the comparison, so that no request repeats."""
POOLS_DIFFER = "the pools of this fleet have different levers, and a replay needs identical engines"


@dataclass(frozen=True, slots=True)
class VerifyOrder:
    """The options of a verification."""

    file: Path
    plan: ComparePlan
    ledger: LedgerFile
    admin_key: str | None = None
    fit: StepFit | None = None


async def verify_fleet(order: VerifyOrder, *, as_json: bool) -> Verification:
    """Verify the top fix of a fleet file; Ctrl-C keeps the complete pairs."""
    fleet, home = load_fleet(order.file), phasewise_home(os.environ)
    if fleet.has(LLAMA_CPP):
        raise ConfigError(
            "`phasewise verify` predicts the effect of a fix on vLLM, and this fleet has llama.cpp",
            hint="compare two fleet files: `phasewise compare A.yaml B.yaml`",
        )
    engine = current_engine()
    machine, running = this_machine(engine.device), running_fleets(home)

    def reject(wanted: FleetConfig) -> None:
        reject_occupied(wanted, machine, running)

    reject(fleet)
    order.ledger.check_writable()
    allow_many_streams()
    setting = Setting(_machine(engine), fleet.model, f"vllm {engine.vllm_version}", __version__)
    plan = VerifyPlan(order.file, fleet, setting, order.plan, on_cpu=engine.device == "cpu")
    interrupts = Interrupts()
    done: Verification | None = None
    # SIGTERM and SIGHUP also stop the fleets, so that none is left behind.
    with interrupts.handled(SIGTERM, SIGHUP):
        person = _Person(order, _levers_of(fleet), home, interrupts, as_json)
        try:
            async with fleets_in_turn(_fleet_arm, person.warm_up) as fleets:
                done = await verify_top_fix(plan, replace(person.tools(fleets), reject=reject))
        except (asyncio.CancelledError, PhasewiseError) as trouble:
            # An error while the last fleet stops must not discard hours of measurements.
            if done is None or not (interrupts.forgives() or isinstance(trouble, PhasewiseError)):
                raise
            say(f"while stopping the last fleet: {str(trouble) or 'interrupted'}")
    return done


def _levers_of(fleet: FleetConfig) -> Levers | None:
    """The levers that all pools share; None if pools differ."""
    first, *others = (levers_of(pool) for pool in fleet.pools)
    return first if all(levers == first for levers in others) else None


def _machine(engine: EngineEnvironment) -> str:
    gpus = gpu_names(os.environ) if engine.device != "cpu" else ()
    cores = f"{platform.machine()}, {len(usable_cores())} cores"
    return ", ".join((f"{platform.system()} {cores}", *gpus))


class _Person:
    """Shows the progress of every stage."""

    def __init__(
        self, order: VerifyOrder, levers: Levers | None, home: Path, interrupts: Interrupts, as_json: bool
    ) -> None:
        self._order = order
        self._levers = levers
        self._home = home
        self._interrupts = interrupts
        self._as_json = as_json
        self._began_s = time.monotonic()
        self._warm_s: float | None = None

    def tools(self, fleets: FleetsInTurn) -> VerifyTools:
        """The tools of `verify_top_fix`."""
        return VerifyTools(
            arm=fleets.arm,
            diagnose=self._diagnose,
            measure=self._measure,
            ledger=self._order.ledger,
            clock=time.time,
            show=self._show,
            announce=self._announce,
            say=say,
            forgives=self._interrupts.forgives,
        )

    async def warm_up(self, url: str) -> None:
        """Send the first requests to a fleet that was just started."""
        spec = self._order.plan.spec
        few = replace(spec.plan, requests=WARM_UP_REQUESTS)
        await self._measure(url, replace(spec, plan=few, seed=spec.seed + WARM_UP_SEEDS), "warming up")
        if self._interrupts.requested:
            # A stopped run returns what it has, and a warm-up has no result to keep.
            raise asyncio.CancelledError
        if self._warm_s is None:
            self._warm_s = time.monotonic()

    async def _measure(self, url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, self._interrupts)

    async def _diagnose(self, url: str) -> Diagnosed:
        spec = self._order.plan.spec
        admin_key = self._order.admin_key or find_admin_key(url, self._home)
        target = await identify(url, admin_key)
        async with observed(target, admin_key) as watch:
            run = await self._measure(url, spec, "the load to diagnose")
            evidence = await watch.evidence(run)
        warm_up = self._order.plan.rules.warm_up_requests
        known = Known(self._order.fit, self._levers, concurrency_of(spec), warm_up)
        verdict = diagnose(evidence, self._order.plan.rules.slo, known)
        if self._levers is None:
            verdict = _unpredictable(verdict, POOLS_DIFFER)
        return Diagnosed(verdict, evidence, cut_short=self._interrupts.requested)

    def _show(self, diagnosed: Diagnosed) -> None:
        if not self._as_json:
            show(out, diagnosed.verdict, f"{self._order.file} under a synthetic load")

    def _announce(self, fix: Fix, change: FleetChange, predictions: Sequence[Prediction]) -> None:
        warm_s, plan = self._warm_s or self._began_s, self._order.plan
        start_s, block_s = warm_s - self._began_s, time.monotonic() - warm_s
        duration = duration_words(plan.pairs or plan.max_pairs, plan.control_pairs, start_s, block_s)
        for line in announcement(fix, change, predictions, duration):
            say(line)


def _unpredictable(verdict: Verdict, why: str) -> Verdict:
    advice = verdict.advice
    if advice is None:
        return verdict
    fixes = tuple(replace(fix, effect=None, unpredictable=why) for fix in advice.fixes)
    return replace(verdict, advice=replace(advice, fixes=fixes))


def _fleet_arm(file: Path, fleet_name: str) -> Arm:
    return FleetArm(file, fleet_name, say)
