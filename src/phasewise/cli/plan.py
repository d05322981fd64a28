"""`phasewise plan`: the cheapest fleet that meets its objectives, by simulating those that might do."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
import yaml

from phasewise.api.call import seed_or_random
from phasewise.cli import options, simulated_engines
from phasewise.cli.outputs import reject_unwritable
from phasewise.core.errors import UsageError
from phasewise.core.slo import DEFAULT_SLO, parse_slo
from phasewise.core.units import share
from phasewise.experiments.plan.candidates import MOST_ENGINES
from phasewise.experiments.plan.plan import make_plan
from phasewise.experiments.plan.trials import Goal, Trial, Trials
from phasewise.experiments.simulate.traffic import block_tokens_of, traffic_of
from phasewise.fleet.config.fleet import DEMO_MODEL
from phasewise.loadgen.workload import choices
from phasewise.loadgen.workload.arrivals import Spacing
from phasewise.loadgen.workload.presets import PresetName
from phasewise.loadgen.workload.traces import Trace
from phasewise.report.console import err, out
from phasewise.report.plan_table import render_plan

LEAST_REQUESTS, LEAST_S = 2_000, 30.0
"""Of generated traffic, unless its length is given."""


def plan(
    *,
    costs: simulated_engines.StepTimes = None,
    model: simulated_engines.ModelConfig = None,
    gpu: simulated_engines.Gpu = None,
    gpus: simulated_engines.Gpus = None,
    kv_tokens: simulated_engines.KvTokens = None,
    link_gbs: simulated_engines.LinkGbs = 25.0,
    most_engines: Annotated[
        int,
        typer.Option(
            min=2, max=MOST_ENGINES, help="Look no further than this.", rich_help_panel=options.SEVERAL
        ),
    ] = MOST_ENGINES,
    draws: simulated_engines.Draws = 10,
    scan: Annotated[
        bool,
        typer.Option(
            help="Also find from which load and prompt length on disaggregation pays.",
            rich_help_panel=options.SEVERAL,
        ),
    ] = True,
    rate: options.Rate = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=100,
            help=f"Number of requests. (default: those of {LEAST_S:g} s, at least {LEAST_REQUESTS}; all of a "
            "trace)",
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
    attainment: Annotated[
        float,
        typer.Option(help="The share of requests that must meet the --slo.", rich_help_panel=options.RESULT),
    ] = 0.95,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Of one device; with --costs, of one engine. (default: prices are counted in engines)",
            rich_help_panel=options.RESULT,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write a fleet file for the chosen fleet.", rich_help_panel=options.RESULT),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the cheapest fleet that meets its objectives, and whether disaggregation pays."""
    reject_unwritable("--save", save)
    if not 0 < attainment < 1:
        raise UsageError(
            f"--attainment {attainment:g} is not a share", hint="give one between 0 and 1, such as 0.95"
        )
    objectives = parse_slo(slo, DEFAULT_SLO)
    engine, origin = simulated_engines.engine_figures(costs, model, gpu, gpus, kv_tokens, link_gbs)
    source = simulated_engines.source_of(
        recorded, preset, trace, prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
    )
    replays = isinstance(source, Trace)
    if rate is None and not replays:
        raise UsageError("how much traffic is to be served?", hint="give --rate, --trace or --recorded")
    if requests is None and duration is None and rate is not None and not replays:
        requests = max(LEAST_REQUESTS, round(rate * turns * LEAST_S))
    load = choices.choose_load(rate, spacing, burstiness, None, speed if replays else None)
    chosen_seed = seed_or_random(seed)
    traffic = traffic_of(
        source, load, requests, duration, choices.choose_conversations(turns, think), chosen_seed
    )
    goal = Goal(objectives, attainment)
    trials = Trials(engine, traffic, goal, block_tokens_of(source), chosen_seed, _say)
    per_hour = 1.0 if price_per_hour is None else price_per_hour * (gpus or 1)
    with simulated_engines.ended_by_ctrl_c():
        found = make_plan(trials, per_hour, draws, most_engines, scans=scan)
    if save is not None:
        fleet = found.chosen.candidate.fleet(model or DEMO_MODEL, None if model is None else gpus or 1)
        text = yaml.safe_dump(fleet.model_dump(mode="json", exclude_defaults=True), sort_keys=False)
        save.write_text(f"# Planned by phasewise. {origin}\n{text}", encoding="utf-8")
        err.print(f"wrote {save}", soft_wrap=True)
    if as_json:
        facts = {
            "seed": chosen_seed,
            "modelled": engine.modelled,
            "step_times": origin,
            "slo": asdict(objectives),
            "attainment": attainment,
            "priced_in": "engines" if price_per_hour is None else "dollars",
            **found.to_dict(),
        }
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render_plan(found, goal, origin, priced=price_per_hour is not None))
        out.print(f"--seed {chosen_seed} repeats this plan to the bit", soft_wrap=True)


def _say(trial: Trial) -> None:
    """A line of progress where somebody may read it."""
    if sys.stderr.isatty():
        done = "misses its objective" if trial.cut else f"{share(trial.attained)} within the objective"
        chunk = f"{trial.candidate.max_num_batched_tokens:,} tokens in a step"
        err.print(f"{trial.candidate.label}, {chunk}: {done}", soft_wrap=True)
