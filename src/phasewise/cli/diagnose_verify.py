"""`phasewise diagnose FLEET.YAML --verify` in front of a person: what is said meanwhile, and Ctrl-C.

What is done in which order is verify/procedure.py's.
"""

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
from phasewise.adapters.open_files import allow_many_streams
from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec
from phasewise.cli.admin_key import find_admin_key
from phasewise.cli.console import err, out
from phasewise.cli.diagnose_view import show
from phasewise.cli.engine import current_engine
from phasewise.cli.interrupts import Interrupts
from phasewise.cli.measuring import measure_with_view
from phasewise.cli.reaching_verdicts import Known, concurrency_of, reach_verdict
from phasewise.cli.verify_view import announcement, duration_words
from phasewise.compare.arms import Arm, FleetArm
from phasewise.compare.procedure import ComparePlan
from phasewise.config import FleetConfig, Levers, load_fleet, phasewise_home
from phasewise.costs.step_fit import StepFit
from phasewise.diagnosis.fix import Fix
from phasewise.diagnosis.verdict import Verdict
from phasewise.errors import PhasewiseError
from phasewise.fleet.engine_env import EngineEnvironment
from phasewise.fleet.machine import gpu_names, this_machine
from phasewise.fleet.role_presets import levers_of
from phasewise.observe.target import identify
from phasewise.verify.fleet_change import FleetChange
from phasewise.verify.ledger import Prediction
from phasewise.verify.ledger_file import LedgerFile
from phasewise.verify.occupied import refuse_occupied, running_fleets
from phasewise.verify.one_at_a_time import FleetsInTurn, fleets_in_turn
from phasewise.verify.own_run import observed
from phasewise.verify.procedure import Diagnosed, Setting, Tools, Verification, VerifyPlan, verify_top_fix

WARM_UP_REQUESTS = 4
"""Sent to a fleet that was just started: it is cold, and that is not what is to be judged,"""
WARM_UP_SEEDS = 20_000
"""and so far from the seeds of a comparison that none of its requests is sent."""
POOLS_DIFFER = "the pools of this fleet have different levers, and a replay knows engines that are alike"


@dataclass(frozen=True, slots=True)
class VerifyOrder:
    """What was asked for."""

    file: Path
    plan: ComparePlan
    ledger: LedgerFile
    admin_key: str | None = None
    fit: StepFit | None = None


async def verify_fleet(order: VerifyOrder, *, as_json: bool) -> Verification:
    """Verify the top fix of a fleet file; a Ctrl-C keeps what is whole."""
    fleet, engine, home = load_fleet(order.file), current_engine(), phasewise_home(os.environ)
    machine, running = this_machine(engine.device), running_fleets(home)

    def refuse(wanted: FleetConfig) -> None:
        refuse_occupied(wanted, machine, running)

    refuse(fleet)
    order.ledger.check_writable()
    allow_many_streams()
    setting = Setting(_machine(engine), fleet.model, f"vllm {engine.vllm_version}", __version__)
    plan = VerifyPlan(order.file, fleet, setting, order.plan, on_cpu=engine.device == "cpu")
    interrupts = Interrupts()
    done: Verification | None = None
    # A service manager's stop or a closed terminal is a Ctrl-C: fleets left behind would serve nobody.
    with interrupts.handled(SIGTERM, SIGHUP):
        person = _Person(order, _levers_of(fleet), home, interrupts, as_json)
        try:
            async with fleets_in_turn(_fleet_arm, person.warm_up) as fleets:
                done = await verify_top_fix(plan, replace(person.tools(fleets), refuse=refuse))
        except (asyncio.CancelledError, PhasewiseError) as trouble:
            # Hours may lie behind us: what goes wrong in stopping the last fleet does not undo them.
            if done is None or not (interrupts.forgives() or isinstance(trouble, PhasewiseError)):
                raise
            _say(f"in stopping the last fleet: {str(trouble) or 'interrupted'}")
    return done


def _levers_of(fleet: FleetConfig) -> Levers | None:
    """The levers that every engine has; None where pools differ."""
    first, *others = (levers_of(pool) for pool in fleet.pools)
    return first if all(levers == first for levers in others) else None


def _machine(engine: EngineEnvironment) -> str:
    gpus = gpu_names(os.environ) if engine.device != "cpu" else ()
    cores = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    return ", ".join((f"{platform.system()} {cores}", *gpus))


class _Person:
    """Shows every stage to whoever waits for it."""

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

    def tools(self, fleets: FleetsInTurn) -> Tools:
        """What the procedure is handed."""
        return Tools(
            arm=fleets.arm,
            diagnose=self._diagnose,
            measure=self._measure,
            ledger=self._order.ledger,
            clock=time.time,
            show=self._show,
            announce=self._announce,
            say=_say,
            forgives=self._interrupts.forgives,
        )

    async def warm_up(self, url: str) -> None:
        """Have a fleet that was just started do its first steps."""
        spec = self._order.plan.spec
        few = replace(spec.plan, requests=WARM_UP_REQUESTS)
        await self._measure(url, replace(spec, plan=few, seed=spec.seed + WARM_UP_SEEDS), "warming up")
        if self._interrupts.requested:
            # A run that is stopped hands over what it has; of this one nobody wants anything.
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
            run = await self._measure(url, spec, "the load to be judged")
            evidence = await watch.evidence(run)
        warm_up = self._order.plan.rules.warm_up_requests
        known = Known(self._order.fit, self._levers, concurrency_of(spec), warm_up)
        verdict = reach_verdict(evidence, self._order.plan.rules.slo, known)
        if self._levers is None:
            verdict = _unforeseen(verdict, POOLS_DIFFER)
        return Diagnosed(verdict, evidence, cut_short=self._interrupts.requested)

    def _show(self, diagnosed: Diagnosed) -> None:
        if not self._as_json:
            show(out, diagnosed.verdict, f"{self._order.file} under our own load")

    def _announce(self, fix: Fix, change: FleetChange, predictions: Sequence[Prediction]) -> None:
        warm_s, plan = self._warm_s or self._began_s, self._order.plan
        start_s, block_s = warm_s - self._began_s, time.monotonic() - warm_s
        duration = duration_words(plan.pairs or plan.max_pairs, plan.control_pairs, start_s, block_s)
        for line in announcement(fix, change, predictions, duration):
            _say(line)


def _unforeseen(verdict: Verdict, why: str) -> Verdict:
    advice = verdict.advice
    if advice is None:
        return verdict
    fixes = tuple(replace(fix, effect=None, unpredictable=why) for fix in advice.fixes)
    return replace(verdict, foreseen=replace(advice, fixes=fixes))


def _fleet_arm(file: Path, fleet_name: str) -> Arm:
    return FleetArm(file, fleet_name, _say)


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)
