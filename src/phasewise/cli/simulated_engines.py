"""The options that describe simulated engines and their load, for the commands that simulate."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from phasewise.api.model_sheet import OwnFigures, accelerator_of
from phasewise.cli import options
from phasewise.cli.options import in_panel
from phasewise.core.errors import UsageError
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.engines.model_config_file import read_model_config
from phasewise.planning.fleet_plan import EngineFigures, modelled_engine
from phasewise.simulator.links import LinkSpeed
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.step_times import preset as cost_preset

engine_option = in_panel("Engines")

StepTimes = Annotated[
    str | None,
    engine_option(
        "--costs",
        metavar="FILE",
        help="Measured step times: a file of `engine calibrate --save`, or the preset cpu-demo.",
    ),
]
ModelConfig = Annotated[
    str | None,
    engine_option(
        "--model",
        help="Instead of --costs: a model's config.json, its folder or a known name, to be modelled on "
        "--gpu.",
    ),
]
DEFAULT_GPU = "H100"
Gpu = Annotated[
    str | None,
    engine_option(
        help=f"With --model: the device of each engine: {', '.join(ACCELERATORS)}. (default: {DEFAULT_GPU})"
    ),
]
Gpus = Annotated[int | None, engine_option(min=1, help="With --model: devices of each engine. (default: 1)")]
KvTokens = Annotated[
    int | None,
    engine_option(help="With --costs: tokens in an engine's KV cache. (default: the demo engine's)"),
]
LinkGbs = Annotated[float, engine_option(min=0.001, help="Bandwidth of an engine for KV transfers, in GB/s.")]
Draws = Annotated[
    int,
    options.series_option(
        min=0,
        help="With --costs FILE: runs with other step times that fit the measurement as well, for intervals.",
    ),
]


def engine_figures(
    costs: str | None,
    model: str | None,
    gpu: str | None,
    gpus: int | None,
    kv_tokens: int | None,
    link_gbs: float,
) -> tuple[EngineFigures, str]:
    """How fast engines are, and where that is known from."""
    if costs is not None and model is not None:
        raise UsageError("--costs and --model were both given", hint="give only one of them")
    if costs is None and model is None:
        raise UsageError(
            "a simulation needs to know how fast an engine is",
            hint="give either --costs FILE (phasewise engine calibrate URL --save FILE) or --model CONFIG",
        )
    if costs is not None and (gpu is not None or gpus is not None):
        raise UsageError(
            "--gpu and --gpus do nothing with --costs",
            hint="measured step times are those of the devices they were measured on",
        )
    if model is not None:
        gpu, gpus = gpu or DEFAULT_GPU, gpus or 1
        if gpu not in ACCELERATORS:
            raise UsageError(f"unknown device {gpu!r}", hint=f"known: {', '.join(ACCELERATORS)}")
        architecture = architecture_of(read_model_config(model, phasewise_home(os.environ), os.environ), None)
        deployment = Deployment(architecture, accelerator_of(gpu, gpus, OwnFigures(), None), gpus)
        engine = modelled_engine(deployment, architecture.max_model_len or 8192, link_gbs * 1e9)
        return engine, f"Step times are modelled from the data sheet of {gpus} x {gpu}, not measured."
    demo = EngineShape()
    tokens = kv_tokens or demo.total_blocks * demo.block_size
    measured = EngineFigures(
        cost_preset("cpu-demo"), tokens, demo.max_num_batched_tokens, demo.max_num_seqs, demo.max_model_len,
        LinkSpeed(link_gbs * 1e9), modelled=False,
    )  # fmt: skip
    if costs != "cpu-demo":
        fit = load_fit(Path(str(costs)))
        front_end_s = fit.fitted.front_end_s
        measured = replace(measured, cost=fit.cost, front_end_s=front_end_s, draws=fit.draws)
    return measured, f"Step times are those of {costs}."


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the process at once.

    As an exception it could be lost: Python ignores those that are raised while the requests of an abandoned
    simulation are cleaned up.
    """
    try:
        before = signal.signal(signal.SIGINT, _end)
    except ValueError:  # only a main thread has handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted: the simulation is not complete, nothing was written\n")
    os._exit(130)
