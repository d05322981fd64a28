"""`phasewise check`: whether a fleet can hand over KV, before it runs and while it does.

What is asked stands in check/gather.py, what the answers mean in check/judgement.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from phasewise.check.before_start import environment_obstacles, no_environment, no_plan, obstacles
from phasewise.check.facts import FleetFacts
from phasewise.check.gather import gather_facts
from phasewise.check.judgement import Finding, judge
from phasewise.check.result import CheckResult
from phasewise.cli.check_view import lines_of
from phasewise.cli.console import out
from phasewise.cli.engine import EnginePython, current_engine
from phasewise.config import (
    FleetConfig,
    WorkerConfig,
    is_gateway_file,
    load_fleet,
    load_gateway_file,
    phasewise_home,
)
from phasewise.errors import ConfigError, EngineNotInstalled
from phasewise.fleet.demo_model import resolve_model
from phasewise.fleet.engine_command import ServedModel
from phasewise.fleet.machine import this_machine
from phasewise.fleet.plan import plan_fleet
from phasewise.fleet.run_file import is_supervised
from phasewise.fleet.run_paths import RunPaths


def check(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.YAML",
            help="A fleet file, or a gateway's file for engines started otherwise.",
        ),
    ],
    provoke: Annotated[
        bool,
        typer.Option(
            "--provoke/--no-provoke",
            help="Also ask each decode engine for KV that nobody has, to see whether it hides the failure.",
        ),
    ] = True,
    engine_python: EnginePython = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Prove by the engines' own counters that KV is handed over, or name in words what keeps it from it.

    Every pair hands over one small prompt. Where nothing runs yet, says whether the fleet could be started.
    Exit code 0 when nothing is wrong, 1 otherwise.
    """
    began_s = time.monotonic()
    if is_gateway_file(file):
        result = _running(load_gateway_file(file).workers, began_s, provoke)
    else:
        result = _fleet(load_fleet(file), engine_python, began_s, provoke)
    if as_json:
        typer.echo(json.dumps(result.as_json()))
    else:
        for line in lines_of(result):
            out.print(line, soft_wrap=True)
    if not result.ok:
        raise typer.Exit(1)


def _fleet(fleet: FleetConfig, engine_python: Path | None, began_s: float, provoke: bool) -> CheckResult:
    home = phasewise_home(os.environ)
    paths = RunPaths(home, fleet.name)
    if is_supervised(paths):
        # What runs may have been moved to other ports on the command line.
        return _running(load_gateway_file(paths.gateway_file).workers, began_s, provoke)
    try:
        engine = current_engine(engine_python)
    except (EngineNotInstalled, ConfigError) as error:
        return _not_running((no_environment(error.message, error.hint),), began_s)
    source = resolve_model(fleet.model, home)
    served = ServedModel(fleet.model, source, is_folder=Path(source).is_dir())
    try:
        plan = plan_fleet(fleet, engine, served, this_machine(engine.device), home)
    except (EngineNotInstalled, ConfigError) as error:
        return _not_running((*environment_obstacles(fleet, engine), no_plan(error)), began_s)
    return _not_running(obstacles(fleet, plan, engine), began_s)


def _running(workers: tuple[WorkerConfig, ...], began_s: float, provoke: bool) -> CheckResult:
    facts = asyncio.run(gather_facts(workers, provoke_failure=provoke))
    return CheckResult(True, facts, judge(facts), time.monotonic() - began_s)


def _not_running(findings: tuple[Finding, ...], began_s: float) -> CheckResult:
    return CheckResult(False, FleetFacts(()), findings, time.monotonic() - began_s)
