"""`phasewise compare A B`: tests whether B is better than A, metric by metric."""

from __future__ import annotations

from typing import Annotated

import typer

from phasewise.api.call import seed_or_random
from phasewise.cli import options
from phasewise.cli.measuring import measure_with_view, page_facts, repeating_command
from phasewise.cli.outputs import Interrupts, reject_unwritable
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams
from phasewise.core.slo import DEFAULT_SLO, parse_slo
from phasewise.experiments.compare.arms import Arm, arms_of
from phasewise.experiments.compare.compare import (
    CONTROL_PAIRS,
    DEFAULT_REQUESTS,
    MOST_PAIRS,
    WARM_UP_SHARE,
    ComparePlan,
    compare_arms,
    plan_comparison,
)
from phasewise.experiments.compare.verdict import ComparisonResult
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import CacheState, RunSpec
from phasewise.loadgen.workload import choices
from phasewise.loadgen.workload.arrivals import Spacing
from phasewise.loadgen.workload.plan import PlanSpec
from phasewise.loadgen.workload.presets import PresetName
from phasewise.report.compare_page import render_page
from phasewise.report.compare_table import render
from phasewise.report.console import err, out


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
    html: options.HtmlPage = None,
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
            source=choices.choose_source(
                preset, trace, prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
            ),
            load=choices.choose_load(rate, spacing, burstiness, concurrency, speed if trace else None),
            requests=requests,
            conversations=choices.choose_conversations(turns, think),
        ),
        seed=seed_or_random(seed),
        cache=cache,
        model=model,
        api_key=api_key,
        timeout_s=timeout,
    )
    reject_unwritable("--html", html)
    plan = plan_comparison(
        spec,
        parse_slo(slo, DEFAULT_SLO),
        warm_up=warm_up,
        alpha=alpha,
        margin=margin,
        control_pairs=control_pairs,
        pairs=pairs,
        max_pairs=max_pairs,
    )
    allow_many_streams()
    result = event_loop.run(run_comparison(*arms_of(a, b, _say), plan))
    if html is not None:
        page = render_page(result, command=repeating_command(spec.seed), circumstances=page_facts(spec))
        html.write_text(page, encoding="utf-8")
        _say(f"wrote {html}")
    if as_json:
        typer.echo(result.to_json())
    else:
        out.print(render(result))
        out.print(f"--seed {spec.seed} repeats these requests", soft_wrap=True)
    if result.cut_short:
        raise typer.Exit(130)
    if not result.trusted:
        raise typer.Exit(1)


async def run_comparison(a: Arm, b: Arm, plan: ComparePlan) -> ComparisonResult:
    """Compare with live progress; Ctrl-C keeps the complete pairs."""
    interrupts = Interrupts()

    async def measure(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, interrupts)

    with interrupts.handled():
        return await compare_arms(a, b, plan, measure, _say, interrupts.forgives)


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)
