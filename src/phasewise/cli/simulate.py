"""`phasewise simulate FLEET`: runs the gateway's scheduling before engines in virtual time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import orjson
import typer

from phasewise.api.call import seed_or_random
from phasewise.cli import options, simulated_engines
from phasewise.cli.outputs import reject_unwritable
from phasewise.core import timeline_record
from phasewise.core.errors import UsageError
from phasewise.core.slo import DEFAULT_SLO, parse_slo
from phasewise.core.units import elapsed
from phasewise.experiments.simulate.fleet_plan import fleet_plan, left_out, with_engines
from phasewise.experiments.simulate.run import SimulatedFigures, with_intervals
from phasewise.experiments.simulate.traffic import block_tokens_of, traffic_of
from phasewise.fleet.config import FleetConfig, load_fleet
from phasewise.loadgen.workload import choices
from phasewise.loadgen.workload.arrivals import Spacing
from phasewise.loadgen.workload.presets import PresetName
from phasewise.report.console import err, out
from phasewise.report.simulation_table import render_simulation
from phasewise.simulator.fleet import FleetPlan, SimulatedFleet
from phasewise.simulator.timelines import timeline_of
from phasewise.simulator.traffic import Traffic

DEFAULT_REQUESTS = 2_000
SAID_EVERY_S = 1.0


def simulate(
    fleet: Annotated[
        Path | None,
        typer.Argument(metavar="[FLEET]", help="A fleet file. (default: one engine with the defaults)"),
    ] = None,
    *,
    costs: simulated_engines.StepTimes = None,
    model: simulated_engines.ModelConfig = None,
    gpu: simulated_engines.Gpu = None,
    gpus: simulated_engines.Gpus = None,
    kv_tokens: simulated_engines.KvTokens = None,
    link_gbs: simulated_engines.LinkGbs = 25.0,
    gateways: Annotated[
        int,
        typer.Option(
            min=1, help="Gateways, each with knowledge of its own.", rich_help_panel=simulated_engines.ENGINE
        ),
    ] = 1,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Simulate several fleets: a pool and its numbers of engines, such as main=4,8,16. May be "
            "given for several pools.",
            rich_help_panel=options.SEVERAL,
        ),
    ] = None,
    draws: simulated_engines.Draws = 10,
    concurrency: options.Concurrency = None,
    rate: options.Rate = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Number of requests. (default: {DEFAULT_REQUESTS}, unless --duration or --trace is given)",
            rich_help_panel=options.WHEN,
        ),
    ] = None,
    duration: simulated_engines.Duration = None,
    spacing: options.SpacingChoice = Spacing.POISSON,
    burstiness: options.Burstiness = 1.0,
    speed: options.Speed = 1.0,
    preset: options.Preset = PresetName.CHAT,
    prompt_tokens: options.PromptTokens = None,
    output_tokens: options.OutputTokens = None,
    shared_prefix_tokens: options.SharedPrefixTokens = None,
    shared_prefixes: options.SharedPrefixes = None,
    turns: options.Turns = 1,
    think: options.Think = 1.0,
    trace: options.TraceFile = None,
    recorded: simulated_engines.Recorded = None,
    seed: simulated_engines.Seed = None,
    slo: options.SloText = "",
    timelines: Annotated[
        Path | None,
        typer.Option(
            help="Write the timeline of every request to this file (NDJSON).", rich_help_panel=options.RESULT
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate a fleet under a workload: the gateway's own scheduling before engines in virtual time."""
    reject_unwritable("--timelines", timelines)
    objectives = parse_slo(slo, DEFAULT_SLO)
    engine, origin = simulated_engines.engine_figures(costs, model, gpu, gpus, kv_tokens, link_gbs)
    replays = trace is not None or recorded is not None
    if requests is None and duration is None and not replays:
        requests = DEFAULT_REQUESTS
    chosen_seed = seed_or_random(seed)
    source = simulated_engines.source_of(
        recorded, preset, trace, prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
    )
    config = FleetConfig() if fleet is None else load_fleet(fleet)
    plan = fleet_plan(config, engine, gateways, block_tokens_of(source))
    if unused := left_out(config):
        err.print(f"not simulated: {', '.join(unused)}", soft_wrap=True)
    plans = _varied(plan, vary or [])
    if timelines is not None and len(plans) > 1:
        raise UsageError("--timelines was given with several fleets", hint="leave out --vary")
    traffic = traffic_of(
        source,
        choices.choose_load(rate, spacing, burstiness, concurrency, speed if replays else None),
        requests,
        duration,
        choices.choose_conversations(turns, think),
        chosen_seed,
    )
    rows: list[SimulatedFigures] = []
    for label, each in plans:
        run = partial(_run, traffic=traffic, seed=chosen_seed, label=label)
        figures, ran = with_intervals(label, each, objectives, engine.fitted, engine.draws[:draws], run)
        rows.append(figures)
        if timelines is not None:
            lines = (timeline_record.encode(timeline_of(it)) + b"\n" for it in ran.requests)
            timelines.write_bytes(b"".join(lines))
            err.print(f"wrote {timelines}", soft_wrap=True)
    if as_json:
        facts = {
            "seed": chosen_seed,
            "modelled": engine.modelled,
            "step_times": origin,
            "slo": asdict(objectives),
            "gateways": gateways,
            "policy": plan.policy,
            "fleets": [it.to_dict() for it in rows],
        }
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render_simulation(rows, objectives, origin))
        out.print(f"--seed {chosen_seed} repeats this run to the bit", soft_wrap=True)


def _varied(plan: FleetPlan, vary: list[str]) -> list[tuple[str, FleetPlan]]:
    """Every combination of the numbers of engines."""
    plans = [plan]
    for each in vary:
        pool, _, numbers = each.partition("=")
        try:
            counts = dict.fromkeys(int(it) for it in numbers.split(","))
            if min(counts) < 1:
                raise ValueError
        except ValueError:
            raise UsageError(
                f"--vary {each} is not a pool with numbers of engines", hint="write it as main=4,8,16"
            ) from None
        plans = [with_engines(it, pool, count) for it in plans for count in counts]
    return [(_label(it), it) for it in plans]


def _label(plan: FleetPlan) -> str:
    return " + ".join(f"{it.engines} {it.name}" for it in plan.pools)


def _run(plan: FleetPlan, traffic: Traffic, seed: int, label: str) -> SimulatedFleet:
    """Run one fleet, with a line of progress where somebody may read it."""
    fleet = SimulatedFleet(plan, seed)
    fleet.on_end = _progress(fleet, traffic, label)
    with simulated_engines.ended_by_ctrl_c():
        fleet.run(traffic)
    if sys.stderr.isatty():
        err.print(" " * 70, end="\r")
    return fleet


def _progress(fleet: SimulatedFleet, traffic: Traffic, label: str) -> Callable[[object], None]:
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
