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
from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec
from phasewise.cli.admin_key import find_admin_key
from phasewise.cli.console import err, out
from phasewise.cli.diagnose_view import show
from phasewise.cli.engine import current_engine
from phasewise.cli.interrupts import Interrupts
from phasewise.cli.measuring import allow_many_streams, measure_with_view
from phasewise.cli.reaching_verdicts import Known, concurrency_of, reach_verdict
from phasewise.cli.verify_view import announcement
from phasewise.compare.arms import Arm, FleetArm
from phasewise.compare.procedure import ComparePlan
from phasewise.config import Levers, load_fleet, phasewise_home
from phasewise.costs.step_fit import StepFit
from phasewise.diagnosis.fix import Fix
from phasewise.fleet.engine_env import EngineEnvironment
from phasewise.fleet.machine import gpu_names, this_machine
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
    refuse_occupied(fleet, this_machine(engine.device), running_fleets(home))
    order.ledger.check_writable()
    allow_many_streams()
    setting = Setting(_machine(engine), fleet.model, f"vllm {engine.vllm_version}", __version__)
    plan = VerifyPlan(order.file, fleet, setting, order.plan, on_cpu=engine.device == "cpu")
    interrupts = Interrupts()
    # A service manager's stop or a closed terminal is a Ctrl-C: fleets left behind would serve nobody.
    with interrupts.handled(SIGTERM, SIGHUP):
        person = _Person(order, fleet.pools[0].levers, home, interrupts, as_json)
        async with fleets_in_turn(_fleet_arm, person.warm_up) as fleets:
            return await verify_top_fix(plan, person.tools(fleets))


def _machine(engine: EngineEnvironment) -> str:
    gpus = gpu_names(os.environ) if engine.device != "cpu" else ()
    cores = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    return ", ".join((f"{platform.system()} {cores}", *gpus))


class _Person:
    """Shows every stage to whoever waits for it."""

    def __init__(
        self, order: VerifyOrder, levers: Levers, home: Path, interrupts: Interrupts, as_json: bool
    ) -> None:
        self._order = order
        self._levers = levers
        self._home = home
        self._interrupts = interrupts
        self._as_json = as_json
        self._began_s = time.monotonic()

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

    async def _measure(self, url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, self._interrupts)

    async def _diagnose(self, url: str) -> Diagnosed:
        spec = self._order.plan.spec
        admin_key = self._order.admin_key or find_admin_key(url, self._home)
        target = await identify(url, admin_key)
        async with observed(target, admin_key) as watch:
            run = await self._measure(url, spec, "the load to be judged")
            evidence = await watch.evidence(run)
        known = Known(self._order.fit, self._levers, concurrency_of(spec))
        verdict = reach_verdict(evidence, self._order.plan.rules.slo, known)
        return Diagnosed(verdict, evidence, cut_short=self._interrupts.requested)

    def _show(self, diagnosed: Diagnosed) -> None:
        if not self._as_json:
            show(out, diagnosed.verdict, f"{self._order.file} under our own load")

    def _announce(self, fix: Fix, change: FleetChange, predictions: Sequence[Prediction]) -> None:
        took_s = time.monotonic() - self._began_s
        for line in announcement(fix, change, predictions, self._order.plan.pairs, took_s):
            _say(line)


def _fleet_arm(file: Path, fleet_name: str) -> Arm:
    return FleetArm(file, fleet_name, _say)


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)
