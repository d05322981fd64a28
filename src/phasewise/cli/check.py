"""`phasewise check`: whether a fleet can transfer KV, before or after it starts."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from phasewise.cli.engine import EnginePython, current_engine
from phasewise.cli.options import AsJson, print_json
from phasewise.core.errors import ConfigError, EngineNotInstalled, PhasewiseError
from phasewise.fleet.check.before_start import environment_obstacles, no_environment, no_plan, obstacles
from phasewise.fleet.check.facts import FleetFacts
from phasewise.fleet.check.gather import gather_facts
from phasewise.fleet.check.judgement import CheckFinding, CheckResult, Mistake, judge
from phasewise.fleet.config import (
    SCHEMA,
    VLLM,
    FleetConfig,
    GatewayFile,
    WorkerConfig,
    is_gateway_file,
    load_fleet,
    load_gateway_file,
    phasewise_home,
)
from phasewise.fleet.engines.environment import device_for, reject_missing_llama_cpp
from phasewise.fleet.engines.known_models import fleet_model
from phasewise.fleet.local.placement import this_machine
from phasewise.fleet.local.plan import plan_fleet
from phasewise.fleet.local.run_files import RunPaths, is_supervised
from phasewise.gateway.discovery import found_at
from phasewise.report.console import out
from phasewise.report.fleet_view import lines_of


def _print_schema(asked: bool) -> None:
    if asked:
        typer.echo(SCHEMA.read_text(encoding="utf-8"), nl=False)
        raise typer.Exit


def check(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.YAML",
            help="A fleet file, or a gateway file for engines that were started separately.",
        ),
    ],
    test_failure: Annotated[
        bool,
        typer.Option(
            "--test-failure/--no-test-failure",
            help="Also request KV that does not exist from each decode engine, to see whether it hides the "
            "failure.",
        ),
    ] = True,
    engine_python: EnginePython = None,
    as_json: AsJson = False,
    _schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            callback=_print_schema,
            is_eager=True,
            help="Print the JSON Schema of fleet and gateway files, for editors, and exit.",
        ),
    ] = False,
) -> None:
    """Check with the engines' own counters that KV is transferred, or say what prevents it.

    Each pair transfers one small prompt. If nothing runs yet, the check says whether the fleet can start
    here. Exit codes: 0 no problem found, 1 otherwise.
    """
    began_s = time.monotonic()
    if is_gateway_file(file):
        result = _gateway(load_gateway_file(file), began_s, test_failure)
    else:
        result = _fleet(load_fleet(file), engine_python, began_s, test_failure)
    if as_json:
        print_json(result.as_json())
    else:
        for line in lines_of(result):
            out.print(line, soft_wrap=True)
    if not result.ok:
        raise typer.Exit(1)


def _fleet(fleet: FleetConfig, engine_python: Path | None, began_s: float, test_failure: bool) -> CheckResult:
    home = phasewise_home(os.environ)
    paths = RunPaths(home, fleet.name)
    if is_supervised(paths):
        # A running fleet may use other ports, given on the command line.
        return _running(load_gateway_file(paths.gateway_file).workers, began_s, test_failure)
    try:
        reject_missing_llama_cpp(fleet)
        engine = current_engine(engine_python) if fleet.has(VLLM) else None
    except (EngineNotInstalled, ConfigError) as error:
        return _not_running((no_environment(error.message, error.hint),), began_s)
    served = fleet_model(fleet, home, os.environ)
    try:
        plan = plan_fleet(fleet, engine, served, this_machine(device_for(engine)), home)
    except (EngineNotInstalled, ConfigError) as error:
        return _not_running((*environment_obstacles(fleet, engine), no_plan(error)), began_s)
    return _not_running(obstacles(fleet, plan, engine), began_s)


def _gateway(file: GatewayFile, began_s: float, test_failure: bool) -> CheckResult:
    found, problems = asyncio.run(_discovered(file))
    result = _running((*file.workers, *found), began_s, test_failure)
    return replace(result, findings=(*problems, *result.findings))


async def _discovered(file: GatewayFile) -> tuple[list[WorkerConfig], list[CheckFinding]]:
    """The engines that are found now, and what is wrong where none is."""
    workers: list[WorkerConfig] = []
    problems: list[CheckFinding] = []
    for source in file.discover:
        try:
            found = await anext(found_at(source, file.kubernetes))
        except PhasewiseError as error:
            words, fix = error.message, error.hint or "check where discover looks"
            problems.append(CheckFinding(Mistake.NO_ENGINE_FOUND, source.named, words, fix))
            continue
        workers += found.workers
        if found.problem is not None:
            words, _, fix = found.problem.partition(": ")
            words, fix = f"{source.named}: {words}", fix or "check its name, namespace and selector"
            problems.append(CheckFinding(Mistake.NO_ENGINE_FOUND, source.named, words, fix))
    return workers, problems


def _running(workers: tuple[WorkerConfig, ...], began_s: float, test_failure: bool) -> CheckResult:
    facts = asyncio.run(gather_facts(workers, test_failure=test_failure))
    return CheckResult(True, facts, judge(facts), time.monotonic() - began_s)


def _not_running(findings: tuple[CheckFinding, ...], began_s: float) -> CheckResult:
    return CheckResult(False, FleetFacts(()), findings, time.monotonic() - began_s)
