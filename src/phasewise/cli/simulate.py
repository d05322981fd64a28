"""`phasewise simulate FLEET`: runs the gateway's scheduling before engines in virtual time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Unpack

import orjson
import typer

from phasewise.api.call import seed_or_random
from phasewise.api.load_options import LoadArguments, LoadOptions
from phasewise.cli import options, simulated_engines
from phasewise.cli.load_options import load_options
from phasewise.cli.options import reject_unwritable, say
from phasewise.core import timeline_record
from phasewise.core.errors import UsageError
from phasewise.core.units import elapsed
from phasewise.fleet.config import FleetConfig, load_fleet
from phasewise.planning.figures import SimulatedFigures, with_intervals
from phasewise.planning.fleet_plan import fleet_plan, left_out, with_engines
from phasewise.planning.traffic import block_tokens_of, traffic_of
from phasewise.report.console import err, out
from phasewise.report.plan_table import render_simulation
from phasewise.simulator.fleet import FleetScenario, SimulatedFleet
from phasewise.simulator.timelines import timeline_of
from phasewise.simulator.traffic import SimulatedTraffic

DEFAULT_REQUESTS = 2_000
SAID_EVERY_S = 1.0


@load_options(f"Number of requests. (default: {DEFAULT_REQUESTS}, unless --duration or --trace is given)")
def simulate(
    fleet: Annotated[
        Path | None,
        typer.Argument(metavar="FLEET", help="A fleet file. (default: one engine with the defaults)"),
    ] = None,
    *,
    costs: simulated_engines.StepTimes = None,
    model: simulated_engines.ModelConfig = None,
    gpu: simulated_engines.Gpu = None,
    gpus: simulated_engines.Gpus = None,
    kv_tokens: simulated_engines.KvTokens = None,
    link_gbs: simulated_engines.LinkGbs = 25.0,
    gateways: Annotated[
        int, simulated_engines.engine_option(min=1, help="Gateways, each with knowledge of its own.")
    ] = 1,
    vary: Annotated[
        list[str] | None,
        options.series_option(
            help="Simulate several fleets: a pool and its numbers of engines, such as main=4,8,16. May be "
            "given for several pools."
        ),
    ] = None,
    draws: simulated_engines.Draws = 10,
    timelines: Annotated[
        Path | None, options.result_option(help="Write the timeline of every request to this file (NDJSON).")
    ] = None,
    as_json: options.AsJson = False,
    **load_arguments: Unpack[LoadArguments],
) -> None:
    """Simulate a fleet under a workload: the gateway's own scheduling before engines in virtual time."""
    reject_unwritable("--timelines", timelines)
    load = LoadOptions.of(load_arguments)
    objectives = load.objectives()
    engine, origin = simulated_engines.engine_figures(costs, model, gpu, gpus, kv_tokens, link_gbs)
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
            lines = (timeline_record.encode(timeline_of(request)) + b"\n" for request in ran.requests)
            timelines.write_bytes(b"".join(lines))
            err.print(f"wrote {timelines}", soft_wrap=True)
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
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
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
    with simulated_engines.ended_by_ctrl_c():
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
