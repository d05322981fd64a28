"""`phasewise engine calibrate URL`: measures how long an engine's steps take."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from phasewise.benchmark.calibrate.calibrate import CalibrateSpec
from phasewise.benchmark.calibrate.machine import Devices, NumberFormat, check_given, find_machine
from phasewise.benchmark.calibrate.result import Calibration
from phasewise.cli import options
from phasewise.cli.measuring import Interrupts
from phasewise.cli.options import StepsUrl, in_panel, print_json, reject_unwritable
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams
from phasewise.clients.http_client import origin
from phasewise.core.errors import UsageError
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.diagnosis.gather.costs_file import save_fit
from phasewise.fleet.config import phasewise_home
from phasewise.report.console import out
from phasewise.report.engine_view import render_calibration

probing_option = in_panel("Probing")
device_option = in_panel("Device")


def calibrate(
    url: Annotated[str, typer.Argument(metavar="URL", help="The engine's own address, not a gateway's.")],
    *,
    minutes: Annotated[float, probing_option(help="Minutes to probe.")] = 2.0,
    listen: Annotated[
        bool,
        probing_option("--listen", help="Send nothing: fit to live traffic. Requires the step recorder."),
    ] = False,
    seed: Annotated[
        int | None, probing_option(min=0, help="Repeat the probes of another calibration.")
    ] = None,
    save: Annotated[
        Path | None,
        options.result_option(help="Save the costs to this file, for `phasewise diagnose --costs`."),
    ] = None,
    as_json: options.AsJson = False,
    gpu: Annotated[
        str | None,
        device_option(
            help=f"The engine's device, to separate weights from overhead: {', '.join(ACCELERATORS)}. "
            "(default: this CPU, if the engine runs on this machine and it has no GPU)"
        ),
    ] = None,
    gpus: Annotated[int, device_option(min=1, help="Number of devices that the engine uses.")] = 1,
    bandwidth_gbs: Annotated[
        float | None,
        device_option(min=1.0, help="Memory bandwidth of each device in GB/s, if --gpu does not know it."),
    ] = None,
    peak_tflops: Annotated[
        float | None,
        device_option(help="Arithmetic of each device in dense TFLOP/s, if --gpu does not know it."),
    ] = None,
    dtype: Annotated[
        NumberFormat, device_option(help="The engine's number format: what it was started with.")
    ] = NumberFormat.SIXTEEN_BIT,
    config: Annotated[
        str | None,
        device_option(
            help="The model's config.json, or a folder with one. (default: what the engine loaded)"
        ),
    ] = None,
    model: options.Model = None,
    api_key: options.ApiKey = None,
    steps_url: StepsUrl = None,
) -> None:
    """Measure how long an engine's steps take by size and kind, and what limits each phase."""
    if not minutes > 0:
        raise UsageError(f"--minutes {minutes:g}", hint="give a number above 0, such as 2")
    home = phasewise_home(os.environ)
    check_given(gpu, config, home)
    reject_unwritable("--save", save)
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
        found, interrupted = event_loop.run(_calibrate(origin(url), spec))
    except asyncio.CancelledError:
        raise typer.Exit(130) from None
    devices = Devices(gpu, gpus, bandwidth_gbs, peak_tflops, dtype.element_bytes)
    machine = find_machine(found.url, config or found.model_root, devices, home)
    found = replace(found, machine=machine)
    if save is not None:
        weights_read_s = None if machine is None else machine.weights_read_s
        save_fit(save, replace(found.fit, weights_read_s=weights_read_s))
    if as_json:
        print_json(found.to_dict(), indented=True)
    else:
        out.print(render_calibration(found))
    if interrupted:
        raise typer.Exit(130)


async def _calibrate(url: str, spec: CalibrateSpec) -> tuple[Calibration, bool]:
    interrupts = Interrupts()
    with interrupts.handled():
        return await interrupts.calibrate(url, spec), interrupts.requested
