"""`phasewise plan`: the cheapest fleet that meets its objectives, by simulating those that might do."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Unpack

import yaml

from phasewise.api.call import seed_or_random
from phasewise.api.load_options import LoadArguments, LoadOptions
from phasewise.cli import options, simulate
from phasewise.cli.load_options import load_options
from phasewise.cli.options import print_json, reject_unwritable, say
from phasewise.core.errors import UsageError
from phasewise.core.units import share
from phasewise.fleet.config.fleet import DEMO_MODEL
from phasewise.planning.candidates import MOST_ENGINES
from phasewise.planning.fleet_plan import block_tokens_of, traffic_of
from phasewise.planning.plan import make_plan
from phasewise.planning.trials import CandidateTrial, CandidateTrials, Goal
from phasewise.report.console import err, out
from phasewise.report.modelled import render_plan

LEAST_REQUESTS, LEAST_S = 2_000, 30.0
"""Of generated traffic, unless its length is given."""
FEWEST_REQUESTS = 100


@load_options(
    LoadOptions,
    f"Number of requests. (default: those of {LEAST_S:g} s, at least {LEAST_REQUESTS}; all of a trace)",
    FEWEST_REQUESTS,
    {"concurrency"},
)
def plan(
    *,
    costs: simulate.StepTimes = None,
    model: simulate.ModelConfig = None,
    gpu: simulate.Gpu = None,
    gpus: simulate.Gpus = None,
    kv_tokens: simulate.KvTokens = None,
    link_gbs: simulate.LinkGbs = 25.0,
    most_engines: Annotated[
        int, options.series_option(min=2, max=MOST_ENGINES, help="Look no further than this.")
    ] = MOST_ENGINES,
    draws: simulate.Draws = 10,
    scan: Annotated[
        bool,
        options.series_option(help="Also find from which load and prompt length on disaggregation pays."),
    ] = True,
    attainment: Annotated[
        float, options.result_option(help="The share of requests that must meet the --slo.")
    ] = 0.95,
    price_per_hour: Annotated[
        float | None,
        options.result_option(
            min=0.0,
            help="Of one device; with --costs, of one engine. (default: prices are counted in engines)",
        ),
    ] = None,
    save: Annotated[
        Path | None, options.result_option(help="Write a fleet file for the chosen fleet.")
    ] = None,
    as_json: options.AsJson = False,
    **load_arguments: Unpack[LoadArguments],
) -> None:
    """Find the cheapest fleet that meets its objectives, and whether disaggregation pays."""
    reject_unwritable("--save", save)
    if not 0 < attainment < 1:
        raise UsageError(
            f"--attainment {attainment:g} is not a share", hint="give one between 0 and 1, such as 0.95"
        )
    load = LoadOptions.of(load_arguments, FEWEST_REQUESTS)
    objectives = load.objectives()
    engine, origin = simulate.engine_figures(costs, model, gpu, gpus, kv_tokens, link_gbs)
    source, requests = load.source(say), load.requests
    if load.rate is None and load.trace is None:
        raise UsageError("how much traffic is to be served?", hint="give --rate or --trace")
    if requests is None and load.duration is None and load.rate is not None and load.trace is None:
        requests = max(LEAST_REQUESTS, round(load.rate * load.turns * LEAST_S))
    seed = seed_or_random(load.seed)
    traffic = traffic_of(source, load.load(), requests, load.duration, load.conversations(), seed)
    goal = Goal(objectives, attainment)
    trials = CandidateTrials(engine, traffic, goal, block_tokens_of(source), seed, _progress)
    per_hour = 1.0 if price_per_hour is None else price_per_hour * (gpus or 1)
    with simulate.ended_by_ctrl_c():
        found = make_plan(trials, per_hour, draws, most_engines, scans=scan)
    if save is not None:
        fleet = found.chosen.candidate.fleet(model or DEMO_MODEL, None if model is None else gpus or 1)
        text = yaml.safe_dump(fleet.model_dump(mode="json", exclude_defaults=True), sort_keys=False)
        save.write_text(f"# Planned by phasewise. {origin}\n{text}", encoding="utf-8")
        say(f"wrote {save}")
    if as_json:
        facts = {
            "seed": seed,
            "modelled": engine.modelled,
            "step_times": origin,
            "slo": asdict(objectives),
            "attainment": attainment,
            "priced_in": "engines" if price_per_hour is None else "dollars",
            **found.to_dict(),
        }
        print_json(facts, indented=True)
    else:
        out.print(render_plan(found, goal, origin, priced=price_per_hour is not None))
        out.print(f"--seed {seed} repeats this plan to the bit", soft_wrap=True)


def _progress(trial: CandidateTrial) -> None:
    """A line of progress where somebody may read it."""
    if sys.stderr.isatty():
        done = "misses its objective" if trial.cut else f"{share(trial.attained)} within the objective"
        chunk = f"{trial.candidate.max_num_batched_tokens:,} tokens in a step"
        err.print(f"{trial.candidate.label}, {chunk}: {done}", soft_wrap=True)
