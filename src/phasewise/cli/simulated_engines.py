"""The options that describe simulated engines and their load, for the commands that simulate."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from phasewise.api.model_sheet import OwnFigures, accelerator_of
from phasewise.cli import options
from phasewise.core.errors import ConfigError
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.experiments.simulate.fleet_plan import EngineFigures, modelled_engine
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.engines.model_config_file import read_model_config
from phasewise.simulator.links import LinkSpeed
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.step_times import preset as cost_preset

ENGINE = "Engines"

StepTimes = Annotated[
    str | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="Measured step times: a file of `engine calibrate --save`, or the preset cpu-demo.",
        rich_help_panel=ENGINE,
    ),
]
ModelConfig = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Instead of --costs: a model's config.json, its folder or a known name, to be modelled on "
        "--gpu.",
        rich_help_panel=ENGINE,
    ),
]
Gpu = Annotated[
    str, typer.Option(help=f"The device of each engine: {', '.join(ACCELERATORS)}.", rich_help_panel=ENGINE)
]
Gpus = Annotated[int, typer.Option(min=1, help="Devices of each engine.", rich_help_panel=ENGINE)]
KvTokens = Annotated[
    int | None,
    typer.Option(
        help="With --costs: tokens in an engine's KV cache. (default: the demo engine's)",
        rich_help_panel=ENGINE,
    ),
]
LinkGbs = Annotated[
    float,
    typer.Option(min=0.001, help="Bandwidth of an engine for KV transfers, in GB/s.", rich_help_panel=ENGINE),
]
Draws = Annotated[
    int,
    typer.Option(
        min=0,
        help="With --costs FILE: runs with other step times that fit the measurement as well, for intervals.",
        rich_help_panel=options.SEVERAL,
    ),
]
Duration = Annotated[
    float | None,
    typer.Option(min=0.001, help="Seconds in which requests arrive.", rich_help_panel=options.WHEN),
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Repeat another run to the bit.", rich_help_panel=options.WHAT)
]


def engine_figures(
    costs: str | None, model: str | None, gpu: str, gpus: int, kv_tokens: int | None, link_gbs: float
) -> tuple[EngineFigures, str]:
    """How fast engines are, and where that is known from."""
    if costs is not None and model is not None:
        raise ConfigError("--costs and --model were both given", hint="give only one of them")
    if costs is None and model is None:
        raise ConfigError(
            "a simulation needs to know how fast an engine is",
            hint="give either --costs FILE (phasewise engine calibrate URL --save FILE) or --model CONFIG",
        )
    if model is not None:
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
