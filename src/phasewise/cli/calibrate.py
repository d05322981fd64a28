"""`phasewise calibrate URL`: how long this engine's steps take, and what binds each phase.

It reads options and prints; what is played and fitted is calibrate/procedure.py's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer
import uvloop

from phasewise.adapters.address import origin
from phasewise.adapters.open_files import allow_many_streams
from phasewise.calibrate.machine import Devices, check_given, find_machine
from phasewise.calibrate.procedure import CalibrateSpec, Course
from phasewise.calibrate.procedure import calibrate as run_calibration
from phasewise.calibrate.result import Calibration
from phasewise.calibrate.result_table import render
from phasewise.cli import workload_options as options
from phasewise.cli.console import out
from phasewise.cli.interrupts import Interrupts
from phasewise.cli.live_view import live_line
from phasewise.cli.output_files import refuse_unwritable
from phasewise.config import phasewise_home
from phasewise.costs.accelerators import ACCELERATORS
from phasewise.errors import ConfigError
from phasewise.observe.costs_file import save_fit


def calibrate(
    url: Annotated[str, typer.Argument(metavar="URL", help="The engine's own address, not a gateway's.")],
    *,
    minutes: Annotated[float, typer.Option(help="How long to probe.")] = 2.0,
    listen: Annotated[
        bool,
        typer.Option(help="Send nothing: fit to the traffic that is there. Needs the step recorder."),
    ] = False,
    steps_url: Annotated[
        str | None,
        typer.Option(help="Where the engine's step recorder listens. (default: the engine's port + 10000)"),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help=f"What the engine runs on, to tell weights from overhead: {', '.join(ACCELERATORS)}. "
            "(default: this CPU, if the engine is on this machine and it has no GPU)"
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="How many of them the engine is spread over.")] = 1,
    bandwidth_gbs: Annotated[
        float | None,
        typer.Option(min=1.0, help="Memory bandwidth of each, GB/s, where --gpu does not know it."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="The model's config.json, or a folder with one. (default: what the engine loaded)"),
    ] = None,
    model: options.Model = None,
    api_key: options.ApiKey = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeat the probes of another calibration.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep the costs in this file, for `phasewise diagnose --costs`."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Probe an engine in every regime, fit how long its steps take, and say what binds each phase here."""
    if not minutes > 0:
        raise ConfigError(f"--minutes {minutes:g}", hint="use a time above 0; 2 is usual")
    home = phasewise_home(os.environ)
    check_given(gpu, config, home)
    refuse_unwritable("--save", save)
    allow_many_streams()
    spec = CalibrateSpec(
        budget_s=60 * minutes,
        listens=listen,
        model=model,
        api_key=api_key,
        steps_url=steps_url,
        seed=secrets.randbelow(2**31) if seed is None else seed,
    )
    try:
        found, interrupted = uvloop.run(_calibrate(origin(url), spec))
    except asyncio.CancelledError:
        raise typer.Exit(130) from None
    machine = find_machine(found.url, config or found.model_root, Devices(gpu, gpus, bandwidth_gbs), home)
    found = replace(found, machine=machine)
    if save is not None:
        weights_read_s = None if machine is None else machine.weights_read_s
        save_fit(save, replace(found.fit, weights_read_s=weights_read_s))
    if as_json:
        typer.echo(orjson.dumps(found.to_dict(), option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render(found))
    if interrupted:
        raise typer.Exit(130)


async def _calibrate(url: str, spec: CalibrateSpec) -> tuple[Calibration, bool]:
    """Calibrate in front of a person; a Ctrl-C fits what was seen until then, a second one ends it all."""
    course = Course()
    interrupts = Interrupts(running=course)

    def words() -> str:
        if course.progress is None:
            return "asking the engine"
        seen = course.progress
        return f"{seen.elapsed_s:.0f} of {seen.budget_s:.0f} s, {seen.done}"

    with interrupts.handled():
        async with live_line("calibrating", words, sys.stderr):
            found = await run_calibration(url, spec, course)
    return found, interrupts.requested
