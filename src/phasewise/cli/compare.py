"""`phasewise compare A B`: tests whether B is better than A, metric by metric."""

from __future__ import annotations

import secrets
from typing import Annotated

import orjson
import typer

from phasewise.cli import options
from phasewise.cli.measuring import measure_with_view
from phasewise.cli.outputs import Interrupts
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams
from phasewise.core.errors import ConfigError
from phasewise.core.slo import DEFAULT_SLO, parse_slo
from phasewise.experiments.compare.arms import Arm, arm_of
from phasewise.experiments.compare.compare import CONTROL_PAIRS, MOST_PAIRS, ComparePlan, compare_arms
from phasewise.experiments.compare.verdict import ComparisonResult, Rules
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import CacheState, RunSpec
from phasewise.loadgen.statistics.comparison import FEWEST_PAIRS
from phasewise.loadgen.workload.arrivals import Spacing
from phasewise.loadgen.workload.plan import PlanSpec
from phasewise.loadgen.workload.presets import PresetName
from phasewise.report.compare_table import render
from phasewise.report.console import err, out

DEFAULT_REQUESTS = 24
WARM_UP_SHARE = 0.15


def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A server's address, or a fleet file; its fleet is started for every block."
        ),
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The other server. A and B are both addresses or both files.")
    ],
    *,
    concurrency: options.Concurrency = None,
    rate: options.Rate = None,
    requests: Annotated[
        int, typer.Option(min=4, help="Requests per block.", rich_help_panel=options.WHEN)
    ] = DEFAULT_REQUESTS,
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
    cache: options.Cache = CacheState.COLD,
    trace: options.TraceFile = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeat the requests of another comparison.", rich_help_panel=options.WHAT),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option(
            min=4,
            help="Pairs of blocks. (default: as many as the noise requires)",
            rich_help_panel=options.SEVERAL,
        ),
    ] = None,
    max_pairs: Annotated[
        int,
        typer.Option(
            min=4,
            help="The largest number of pairs to measure, however noisy the results are.",
            rich_help_panel=options.SEVERAL,
        ),
    ] = MOST_PAIRS,
    control_pairs: Annotated[
        int,
        typer.Option(
            min=0,
            help="Pairs of A against itself, to measure the noise; 0 for none.",
            rich_help_panel=options.SEVERAL,
        ),
    ] = CONTROL_PAIRS,
    slo: options.SloText = "",
    as_json: options.AsJson = False,
    margin: Annotated[
        float,
        typer.Option(
            help="Relative change that does not matter: within it, A and B are equivalent.",
            rich_help_panel=options.RESULT,
        ),
    ] = 0.05,
    alpha: Annotated[
        float,
        typer.Option(
            help="Probability of any false `better` or `worse` when A and B are equal.",
            rich_help_panel=options.RESULT,
        ),
    ] = 0.05,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"Requests to leave out at the start of each block. (default: {WARM_UP_SHARE:.0%} of them)",
            rich_help_panel=options.RESULT,
        ),
    ] = None,
    model: options.Model = None,
    api_key: options.ApiKey = None,
    timeout: options.Timeout = 600.0,
) -> None:
    """Test whether B is better than A: send the same requests to both in turn, and judge each metric."""
    spec = RunSpec(
        plan=PlanSpec(
            source=options.choose_source(
                preset, trace, prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
            ),
            load=options.choose_load(rate, spacing, burstiness, concurrency, speed if trace else None),
            requests=requests,
            conversations=options.choose_conversations(turns, think),
        ),
        seed=secrets.randbelow(2**31) if seed is None else seed,
        cache=cache,
        model=model,
        api_key=api_key,
        timeout_s=timeout,
    )
    left_out = round(WARM_UP_SHARE * requests) if warm_up is None else warm_up
    _check(left_out, requests, margin, alpha, control_pairs)
    plan = ComparePlan(
        spec=spec,
        rules=Rules(parse_slo(slo, DEFAULT_SLO), left_out, alpha, margin),
        control_pairs=control_pairs,
        pairs=pairs,
        max_pairs=max_pairs,
    )
    allow_many_streams()
    result = event_loop.run(run_comparison(arm_of(a, "a", _say), arm_of(b, "b", _say), plan))
    if as_json:
        facts = result.to_dict() | {"seed": spec.seed}
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render(result))
        out.print(f"--seed {spec.seed} repeats these requests", soft_wrap=True)
    if result.cut_short:
        raise typer.Exit(130)
    if not result.trusted:
        raise typer.Exit(1)


def _check(left_out: int, requests: int, margin: float, alpha: float, control_pairs: int) -> None:
    if left_out >= requests:
        raise ConfigError(
            f"--warm-up {left_out} leaves out all {requests} requests",
            hint="lower --warm-up or raise --requests",
        )
    if not (0 < margin < 1 and 0 < alpha < 1):
        raise ConfigError(
            f"--margin {margin:g} and --alpha {alpha:g}", hint="both have to be between 0 and 1, such as 0.05"
        )
    check_control_pairs(control_pairs)


def check_control_pairs(control_pairs: int) -> None:
    """ConfigError for a control with too few pairs to show anything."""
    if 0 < control_pairs < FEWEST_PAIRS:
        raise ConfigError(
            f"--control-pairs {control_pairs}",
            hint=f"use at least {FEWEST_PAIRS}, or 0 for no control",
        )


async def run_comparison(a: Arm, b: Arm, plan: ComparePlan) -> ComparisonResult:
    """Compare with live progress; Ctrl-C keeps the complete pairs."""
    interrupts = Interrupts()

    async def measure(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, interrupts)

    with interrupts.handled():
        return await compare_arms(a, b, plan, measure, _say, interrupts.forgives)


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)
