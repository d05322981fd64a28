"""`phasewise engine validate`: which published claims hold on this hardware, as a report to share."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Annotated

import psutil
import typer

from phasewise import __version__
from phasewise.benchmark.compare.arms import FleetArm, fleets_in_turn, reject_occupied, running_fleets
from phasewise.cli.engine import current_engine
from phasewise.cli.measuring import Interrupts
from phasewise.cli.options import AsJson, reject_unwritable, say
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams, processor_name, usable_cores
from phasewise.core.errors import ConfigError, PhasewiseError, UsageError
from phasewise.costs.roofline.model_config import optional_count
from phasewise.experiments.validation import STEPS, Figures, ValidationRun, base_fleet
from phasewise.experiments.validation_claims import (
    ClaimOutcome,
    ValidationReport,
    judge_claims,
    read_judged,
    report_json,
    without_names,
)
from phasewise.fleet.config import FleetConfig, load_fleet, phasewise_home
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.engines.known_models import read_model_config
from phasewise.fleet.local.placement import gpu_memory_and_driver, gpu_names, this_machine
from phasewise.report.console import fail, out
from phasewise.report.engine_view import markdown_row, render_validation

LONGEST_UNASKED_TOKENS = 8192
"""All traffic here fits, and a request this long fits the 1 GiB KV cache of an engine on a CPU."""


def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FLEET|REPORT",
            help="A fleet file with one engine (default: the demo model), or reports (.json) to check and "
            "print as lines for the page of reports.",
        ),
    ] = None,
    *,
    minutes: Annotated[float, typer.Option(min=1.0, help="The most minutes that the run may take.")] = 30.0,
    only: Annotated[str, typer.Option(metavar="STEP,...", help=f"Try only these: {', '.join(STEPS)}.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Repeat the requests of another run.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(help="The report. (default: phasewise-validation- and the time, .json)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check which published claims hold on this hardware, in at most 30 minutes, and write a report.

    Starts the fleet and changed copies of it, one at a time. It calibrates, plants three faults for
    `diagnose`, and compares two levers. The report holds no prompts and no names of hosts or users, so that
    it can be shared. Ctrl-C writes a report of what was done.
    """
    if files and all(file.suffix == ".json" for file in files):
        _check_reports(files)
        return
    steps = tuple(name.strip() for name in only.split(",") if name.strip()) or STEPS
    if unknown := sorted({*steps} - {*STEPS}):
        raise UsageError(f"there is no step {unknown[0]!r}", hint=f"accepted: {', '.join(STEPS)}")
    written = output or Path(time.strftime("phasewise-validation-%Y%m%d-%H%M%S.json"))
    reject_unwritable("--output", written)
    allow_many_streams()
    fleet = base_fleet(load_fleet(files[0]) if files else FleetConfig())
    data = report_json(event_loop.run(_validate(fleet, steps, minutes, seed)))
    written.write_bytes(data)
    # What is shown is what was written, and what others can read.
    report = read_judged(data, written.name)
    if as_json:
        typer.echo(data.decode(), nl=False)
    else:
        out.print(render_validation(report))
    say(f"wrote {written}")
    if report.interrupted:
        raise typer.Exit(130)
    if report.count(ClaimOutcome.NOT_TRIED) == len(report.claims):
        raise typer.Exit(1)


async def _validate(fleet: FleetConfig, steps: Sequence[str], minutes: float, seed: int) -> ValidationReport:
    """Run the steps with live progress, and report what was done, however the run ends."""
    engine, home, interrupts = current_engine(), phasewise_home(os.environ), Interrupts()
    fleet, context_tokens = _with_context(fleet, home)
    reject_occupied(fleet, this_machine(engine.device), running_fleets(home))
    began_s, run = time.monotonic(), None

    async def nothing(url: str) -> None:
        pass

    with (
        tempfile.TemporaryDirectory(prefix="phasewise-validate-") as scratch,
        interrupts.handled(SIGTERM, SIGHUP),
    ):
        try:
            async with fleets_in_turn(lambda file, name: FleetArm(file, name, say), nothing) as fleets:
                run = ValidationRun(
                    fleet, home, Path(scratch), seed, fleets, interrupts.measure, interrupts.calibrate,
                    context_tokens, engine.device == "cpu", say, lambda: interrupts.requested,
                )  # fmt: skip
                await run.run(steps, 60 * minutes)
        except asyncio.CancelledError:
            if not interrupts.forgives():
                raise
        except PhasewiseError as error:
            # An engine that does not stop costs nobody the report.
            fail(error)
    results = () if run is None else tuple(run.results)
    levers = {name: value for name, value in fleet.pools[0].levers if value is not None}
    flags = " ".join([*fleet.pools[0].engine_flags, *(f"{name}={value}" for name, value in levers.items())])
    settings: Figures = {
        "model": without_names(fleet.model),
        "device": engine.device,
        "engine": without_names(flags),
        "context_tokens": context_tokens,
        "seed": seed,
        "budget_minutes": minutes,
    }
    return ValidationReport(
        day=time.strftime("%Y-%m-%d", time.gmtime()),
        took_minutes=round((time.monotonic() - began_s) / 60, 1),
        interrupted=interrupts.requested,
        machine=_machine(engine.device),
        versions=_versions(engine),
        settings=settings,
        steps=results,
        claims=judge_claims(results),
    )


def _with_context(fleet: FleetConfig, home: Path) -> tuple[FleetConfig, int]:
    """The fleet with a longest context, the model's own if it is short, and that context."""
    (pool,) = fleet.pools
    tokens = pool.levers.max_model_len
    if tokens is None:
        config = read_model_config(fleet.model, home, os.environ)
        inner = config.get("text_config")
        own = optional_count(inner if isinstance(inner, dict) else config, "max_position_embeddings")
        tokens = min(own or LONGEST_UNASKED_TOKENS, LONGEST_UNASKED_TOKENS)
    levers = pool.levers.model_copy(update={"max_model_len": tokens})
    return fleet.model_copy(update={"pools": (pool.model_copy(update={"levers": levers}),)}), tokens


def _machine(device: str) -> Figures:
    memory_mib, driver = ((), "") if device == "cpu" else gpu_memory_and_driver(os.environ)
    gpus = () if device == "cpu" else gpu_names(os.environ)
    names = f"{len(gpus)} x {gpus[0]}, {memory_mib[0] // 1024 if memory_mib else 0} GiB each" if gpus else ""
    return {
        "processor": without_names(processor_name()),
        "cores": len(usable_cores()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpus": without_names(names),
        "driver": without_names(driver),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _versions(engine: EngineEnvironment) -> Figures:
    return {
        "phasewise": __version__,
        "python": platform.python_version(),
        "vllm": engine.vllm_version,
        "torch": engine.torch_version,
        "step_recorder": engine.plugin_version or "",
    }


def _check_reports(files: Sequence[Path]) -> None:
    """Print each report's line; ConfigError at the first that is wrong."""
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be read ({error.strerror})", hint="give a .json file"
            ) from error
        row = markdown_row(read_judged(data, file.name), f"validated/{file.name}")
        say(f"{file} is a valid report; its line for the page of reports:")
        typer.echo(row)
