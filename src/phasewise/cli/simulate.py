"""`phasewise simulate FLEET`: runs the gateway's scheduling before engines in virtual time.

`plan` describes the engines that it simulates with the same options.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Unpack

import typer

from phasewise.api.call import seed_or_random
from phasewise.api.load_options import LoadArguments, LoadOptions
from phasewise.cli import options
from phasewise.cli.load_options import load_options
from phasewise.cli.options import in_panel, print_json, reject_unwritable, say, write_timelines
from phasewise.core.errors import UsageError
from phasewise.core.units import elapsed
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.fleet.config import FleetConfig, load_fleet, phasewise_home
from phasewise.fleet.engines.known_models import read_model_config
from phasewise.planning.figures import SimulatedFigures, with_intervals
from phasewise.planning.fleet_plan import (
    EngineFigures,
    block_tokens_of,
    fleet_plan,
    left_out,
    modelled_engine,
    traffic_of,
    with_engines,
)
from phasewise.report.console import err, out
from phasewise.report.modelled import render_simulation
from phasewise.simulator.fleet import FleetScenario, SimulatedFleet
from phasewise.simulator.hosts import LinkSpeed
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.requests import preset as cost_preset
from phasewise.simulator.timelines import timeline_of
from phasewise.simulator.traffic import SimulatedTraffic

engine_option = in_panel("Engines")

StepTimes = Annotated[
    str | None,
    engine_option(
        help="Measured step times: a file of `engine calibrate --save`, or the preset cpu-demo.",
    ),
]
ModelConfig = Annotated[
    str | None,
    engine_option(
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
        deployment = Deployment(architecture, ACCELERATORS[gpu], gpus)
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


DEFAULT_REQUESTS = 2_000
SAID_EVERY_S = 1.0


@load_options(
    LoadOptions, f"Number of requests. (default: {DEFAULT_REQUESTS}, unless --duration or --trace is given)"
)
def simulate(
    fleet: Annotated[
        Path | None,
        typer.Argument(metavar="FLEET", help="A fleet file. (default: one engine with the defaults)"),
    ] = None,
    *,
    costs: StepTimes = None,
    model: ModelConfig = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    kv_tokens: KvTokens = None,
    link_gbs: LinkGbs = 25.0,
    gateways: Annotated[int, engine_option(min=1, help="Gateways, each with knowledge of its own.")] = 1,
    vary: Annotated[
        list[str] | None,
        options.series_option(
            help="Simulate several fleets: a pool and its numbers of engines, such as main=4,8,16. May be "
            "given for several pools."
        ),
    ] = None,
    draws: Draws = 10,
    timelines: options.Timelines = None,
    as_json: options.AsJson = False,
    **load_arguments: Unpack[LoadArguments],
) -> None:
    """Simulate a fleet under a workload: the gateway's own scheduling before engines in virtual time."""
    reject_unwritable("--timelines", timelines)
    load = LoadOptions.of(load_arguments)
    objectives = load.objectives()
    engine, origin = engine_figures(costs, model, gpu, gpus, kv_tokens, link_gbs)
    requests = load.requests
    if requests is None and load.duration is None and load.trace is None:
        requests = DEFAULT_REQUESTS
    source, seed = load.source(say), seed_or_random(load.seed)
    config = FleetConfig() if fleet is None else load_fleet(fleet)
    plan = fleet_plan(config, engine, gateways, block_tokens_of(source))
    if unused := left_out(config):
        err.print(f"not simulated: {', '.join(unused)}", soft_wrap=True)
    plans = _varied(plan, vary or [])
    if timelines is not None and len(plans) > 1:
        raise UsageError("--timelines was given with several fleets", hint="leave out --vary")
    traffic = traffic_of(source, load.load(), requests, load.duration, load.conversations(), seed)
    rows: list[SimulatedFigures] = []
    for label, each in plans:
        run = partial(_run, traffic=traffic, seed=seed, label=label)
        figures, ran = with_intervals(label, each, objectives, engine.fitted, engine.draws[:draws], run)
        rows.append(figures)
        if timelines is not None:
            write_timelines(timelines, map(timeline_of, ran.requests))
            say(f"wrote {timelines}")
    if as_json:
        facts = {
            "seed": seed,
            "modelled": engine.modelled,
            "step_times": origin,
            "slo": asdict(objectives),
            "gateways": gateways,
            "policy": plan.policy,
            "fleets": [row.to_dict() for row in rows],
        }
        print_json(facts, indented=True)
    else:
        out.print(render_simulation(rows, objectives, origin))
        out.print(f"--seed {seed} repeats this run to the bit", soft_wrap=True)


def _varied(plan: FleetScenario, vary: list[str]) -> list[tuple[str, FleetScenario]]:
    """Every combination of the numbers of engines."""
    plans = [plan]
    for each in vary:
        pool, _, numbers = each.partition("=")
        try:
            counts = dict.fromkeys(map(int, numbers.split(",")))
            if min(counts) < 1:
                raise ValueError
        except ValueError:
            raise UsageError(
                f"--vary {each} is not a pool with numbers of engines", hint="write it as main=4,8,16"
            ) from None
        plans = [with_engines(fleet, pool, count) for fleet in plans for count in counts]
    return [(" + ".join(f"{pool.engines} {pool.name}" for pool in fleet.pools), fleet) for fleet in plans]


def _run(plan: FleetScenario, traffic: SimulatedTraffic, seed: int, label: str) -> SimulatedFleet:
    """Run one fleet, with a line of progress where somebody may read it."""
    fleet = SimulatedFleet(plan, seed)
    fleet.on_end = _progress(fleet, traffic, label)
    with ended_by_ctrl_c():
        fleet.run(traffic)
    if sys.stderr.isatty():
        err.print(" " * 70, end="\r")
    return fleet


def _progress(fleet: SimulatedFleet, traffic: SimulatedTraffic, label: str) -> Callable[[object], None]:
    total, began_s = traffic.requests, time.monotonic()
    said_s, ended = began_s, 0

    def note(_request: object) -> None:
        nonlocal said_s, ended
        ended += 1
        now_s = time.monotonic()
        if now_s - said_s >= SAID_EVERY_S and sys.stderr.isatty():
            said_s = now_s
            at = elapsed(fleet.clock.now_s)
            err.print(f"{label}: {ended:,} of {total:,} requests, {at} of virtual time", end="\r")

    return note
