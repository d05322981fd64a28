"""`phasewise compare A B`: whether B is better than A, metric by metric, and how sure that is.

It reads options and prints; what is measured in which order is compare/procedure.py's.
"""

from __future__ import annotations

import secrets
from typing import Annotated

import orjson
import typer
import uvloop

from phasewise.adapters.open_files import allow_many_streams
from phasewise.bench.comparison import FEWEST_PAIRS
from phasewise.bench.run import BenchRun
from phasewise.bench.session import CacheState, RunSpec
from phasewise.cli import workload_options as options
from phasewise.cli.console import err, out
from phasewise.cli.interrupts import Interrupts
from phasewise.cli.measuring import measure_with_view
from phasewise.compare.arms import Arm, arm_of
from phasewise.compare.procedure import CONTROL_PAIRS, MOST_PAIRS, ComparePlan, compare_arms
from phasewise.compare.result_table import render
from phasewise.compare.verdict import ComparisonResult, Rules
from phasewise.errors import ConfigError
from phasewise.model.slo import DEFAULT_SLO, parse_slo
from phasewise.workload.arrivals import Spacing
from phasewise.workload.plan import PlanSpec
from phasewise.workload.presets import PresetName

DEFAULT_REQUESTS = 24
WARM_UP_SHARE = 0.15


def compare(
    a: Annotated[
        str, typer.Argument(metavar="A", help="An address, or a fleet file to start for every block.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one. Both addresses, or both files.")],
    *,
    preset: options.Preset = PresetName.CHAT,
    trace: options.TraceFile = None,
    speed: options.Speed = 1.0,
    rate: options.Rate = None,
    spacing: options.SpacingChoice = Spacing.POISSON,
    burstiness: options.Burstiness = 1.0,
    concurrency: options.Concurrency = None,
    requests: Annotated[
        int, typer.Option(min=4, help="Requests in a block.", rich_help_panel=options.WHEN)
    ] = DEFAULT_REQUESTS,
    prompt_tokens: options.PromptTokens = None,
    output_tokens: options.OutputTokens = None,
    shared_prefix_tokens: options.SharedPrefixTokens = None,
    shared_prefixes: options.SharedPrefixes = None,
    turns: options.Turns = 1,
    think: options.Think = 1.0,
    cache: options.Cache = CacheState.COLD,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"Leave the first so many of a block out. (default: {WARM_UP_SHARE:.0%} of them)",
            rich_help_panel=options.RESULT,
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            help="A relative change that would not matter: within it, B is equivalent.",
            rich_help_panel=options.RESULT,
        ),
    ] = 0.05,
    alpha: Annotated[
        float,
        typer.Option(
            help="The chance of any false better or worse when A and B are equal.",
            rich_help_panel=options.RESULT,
        ),
    ] = 0.05,
    control_pairs: Annotated[
        int,
        typer.Option(
            min=0,
            help="Pairs of A against itself, to learn the noise; 0 for none.",
            rich_help_panel=options.SEVERAL,
        ),
    ] = CONTROL_PAIRS,
    pairs: Annotated[
        int | None,
        typer.Option(
            min=4,
            help="Pairs of blocks. (default: as many as the noise asks for)",
            rich_help_panel=options.SEVERAL,
        ),
    ] = None,
    max_pairs: Annotated[
        int,
        typer.Option(
            min=4, help="The most pairs to measure, however noisy it is.", rich_help_panel=options.SEVERAL
        ),
    ] = MOST_PAIRS,
    slo: options.SloText = "",
    model: options.Model = None,
    api_key: options.ApiKey = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeat the requests of another comparison.", rich_help_panel=options.WHAT),
    ] = None,
    timeout: options.Timeout = 600.0,
    as_json: options.AsJson = False,
) -> None:
    """Say whether B is better than A: the same requests to both in turn, and a verdict per metric."""
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
    result = uvloop.run(run_comparison(arm_of(a, "a", _say), arm_of(b, "b", _say), plan))
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
        raise ConfigError(f"--warm-up {left_out} of {requests} requests", hint="leave some to be counted")
    if not (0 < margin < 1 and 0 < alpha < 1):
        raise ConfigError(
            f"--margin {margin:g} and --alpha {alpha:g}", hint="both are shares between 0 and 1, such as 0.05"
        )
    check_control_pairs(control_pairs)


def check_control_pairs(control_pairs: int) -> None:
    """ConfigError for a control that could tell nothing."""
    if 0 < control_pairs < FEWEST_PAIRS:
        raise ConfigError(
            f"--control-pairs {control_pairs}",
            hint=f"fewer than {FEWEST_PAIRS} tell nothing; 0 leaves it out",
        )


async def run_comparison(a: Arm, b: Arm, plan: ComparePlan) -> ComparisonResult:
    """Compare in front of a person; a Ctrl-C keeps the pairs that were whole."""
    interrupts = Interrupts()

    async def measure(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, interrupts)

    with interrupts.handled():
        return await compare_arms(a, b, plan, measure, _say, interrupts.forgives)


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)
