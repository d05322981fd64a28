"""`phasewise compare A B`: tests whether B is better than A, metric by metric."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar, Unpack

import typer

from phasewise.api.load_options import MeasurementArguments, MeasurementOptions
from phasewise.api.targets import is_fleet_file
from phasewise.benchmark.compare.arms import Arm, arms_of
from phasewise.benchmark.compare.compare import (
    CONTROL_PAIRS,
    DEFAULT_REQUESTS,
    MOST_PAIRS,
    WARM_UP_SHARE,
    ComparePlan,
    compare_arms,
    plan_comparison,
    requests_in_block,
)
from phasewise.benchmark.compare.ledger import LEDGER_NAME, LEDGER_VERSION, LedgerFile, score
from phasewise.benchmark.compare.verdict import ComparisonResult
from phasewise.benchmark.statistics.comparison import FEWEST_PAIRS
from phasewise.cli import options
from phasewise.cli.compare_fleet import compare_with_settings, try_fix
from phasewise.cli.diagnose import write_page
from phasewise.cli.load_options import load_options
from phasewise.cli.measuring import Interrupts, page_facts, repeating_command
from phasewise.cli.options import in_panel, print_json, reject_unwritable, say
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams
from phasewise.core.errors import UsageError
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.diagnosis.verdict import verdict_record
from phasewise.experiments.fix_trial import FixTrial
from phasewise.fleet.config import phasewise_home
from phasewise.report.compare import render, render_page
from phasewise.report.console import out
from phasewise.report.ledger_view import fix_trial_facts, render_trial
from phasewise.report.ledger_view import render as render_ledger

change_option = in_panel("A fleet and its changed copy")
_Result = TypeVar("_Result")


@load_options(
    MeasurementOptions,
    f"Requests per block. (default: {DEFAULT_REQUESTS}, or all of a --trace)",
    FEWEST_PAIRS,
    {"duration"},
)
def compare(
    ctx: typer.Context,
    a: Annotated[
        str | None,
        typer.Argument(
            metavar="A", help="A server's address, or a fleet file; its fleet is started for every block."
        ),
    ] = None,
    b: Annotated[
        str | None,
        typer.Argument(metavar="B", help="The other server. A and B are both addresses or both files."),
    ] = None,
    *,
    settings: Annotated[
        list[str] | None,
        change_option(
            "--set",
            metavar="LEVER=VALUE",
            help="Instead of B: the fleet of A with this lever, such as prefix_cache=false, or engine flag, "
            "such as --block-size=32. Can be repeated.",
        ),
    ] = None,
    fix: Annotated[
        bool,
        change_option(
            "--fix",
            help="Instead of B: diagnose the fleet of A under the load, predict the effect of its first fix, "
            "and compare with a copy that has it.",
        ),
    ] = False,
    history: Annotated[
        bool,
        change_option(
            "--history",
            help="Show every prediction of --fix with its outcome, and the score. Starts no fleet.",
        ),
    ] = False,
    ledger_file: Annotated[
        Path | None,
        change_option(
            "--ledger",
            help="The file of predictions and outcomes. (default: ledger.jsonl in the data folder)",
        ),
    ] = None,
    costs: options.Costs = None,
    pairs: Annotated[
        int | None,
        options.series_option(min=4, help="Pairs of blocks. (default: as many as the noise requires)"),
    ] = None,
    max_pairs: Annotated[
        int,
        options.series_option(
            min=4, help="The largest number of pairs to measure, however noisy the results are."
        ),
    ] = MOST_PAIRS,
    control_pairs: Annotated[
        int,
        options.series_option(
            min=0, help="Pairs of A against itself, to measure the noise; 0 for none, as with --fix."
        ),
    ] = CONTROL_PAIRS,
    as_json: options.AsJson = False,
    html: options.HtmlPage = None,
    margin: Annotated[
        float,
        options.result_option(
            help="Relative change that does not matter: within it, A and B are equivalent."
        ),
    ] = 0.05,
    alpha: Annotated[
        float,
        options.result_option(help="Probability of any false `better` or `worse` when A and B are equal."),
    ] = 0.05,
    warm_up: Annotated[
        int | None,
        options.result_option(
            min=0,
            help=f"Requests to leave out at the start of each block. (default: {WARM_UP_SHARE:.0%} of them)",
        ),
    ] = None,
    **load_arguments: Unpack[MeasurementArguments],
) -> None:
    """Test whether B is better than A: send the same requests to both in turn, and judge each metric.

    B may be the fleet of A with a change: --set names it, --fix takes it from the verdict and keeps score of
    its prediction. A fleet file is not changed.
    """
    ledger = LedgerFile(ledger_file or phasewise_home(os.environ) / LEDGER_NAME)
    if history:
        options.reject_typed_beside(ctx, "--history", {"--ledger", "--json"})
        show_history(ledger, as_json=as_json)
        return
    a = _checked_sides(a, b, settings, fix=fix)
    load = MeasurementOptions.of(load_arguments, FEWEST_PAIRS)
    source = load.source(say)
    spec = load.run_spec(
        source,
        requests_in_block(source, load.requests, say),
    )
    reject_unwritable("--html", html)
    if fix and "--control-pairs" not in options.typed_options(ctx):
        control_pairs = 0
    plan = plan_comparison(
        spec,
        load.objectives(),
        warm_up=warm_up,
        alpha=alpha,
        margin=margin,
        control_pairs=control_pairs,
        # Every pair starts a fleet: a fix is tried with the fewest pairs that can show a worthwhile one.
        pairs=FEWEST_PAIRS if fix and pairs is None else pairs,
        max_pairs=max_pairs,
    )
    allow_many_streams()
    if fix:
        fit = None if costs is None else load_fit(costs)
        _try_fix(Path(a), plan, ledger, fit, html, as_json=as_json)
        return
    result = _compared(a, b, settings or (), plan)
    if html is not None:
        page = render_page(result, command=repeating_command(spec.seed), circumstances=page_facts(spec))
        html.write_text(page, encoding="utf-8")
        say(f"wrote {html}")
    if as_json:
        typer.echo(result.to_json())
    else:
        out.print(render(result))
        out.print(f"--seed {spec.seed} repeats these requests", soft_wrap=True)
    _leave(result)


def _checked_sides(a: str | None, b: str | None, settings: list[str] | None, *, fix: bool) -> str:
    """A, if there is exactly one B: another server, --set or --fix."""
    if a is None:
        raise typer.BadParameter("give two servers, or a fleet file with --set or --fix", param_hint="A")
    given = [name for name, is_given in (("B", b), ("--set", settings), ("--fix", fix)) if is_given]
    if not given:
        raise typer.BadParameter("give the other server, --set or --fix", param_hint="B")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} were given together", hint="give one of them")
    if b is None and not is_fleet_file(a):
        raise UsageError(
            f"{a} is not a fleet file: {given[0]} starts and stops its own fleets, and never changes a "
            "running server",
            hint="save its traffic with `phasewise diagnose URL --save-traffic window.jsonl`, then run "
            f"`phasewise compare fleet.yaml {given[0]} --trace window.jsonl` with a fleet file of "
            "such an engine",
        )
    return a


def _compared(a: str, b: str | None, settings: Sequence[str], plan: ComparePlan) -> ComparisonResult:
    if b is not None:
        return event_loop.run(run_comparison(*arms_of(a, b, say), plan))
    return _until_interrupted(compare_with_settings(Path(a), settings, plan))


def _until_interrupted(work: Coroutine[None, None, _Result]) -> _Result:
    try:
        return event_loop.run(work)
    except asyncio.CancelledError:
        say("stopped before anything was measured")
        raise typer.Exit(130) from None


def _try_fix(
    file: Path,
    plan: ComparePlan,
    ledger: LedgerFile,
    fit: StepFit | None,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    done = _until_interrupted(try_fix(file, plan, ledger, fit, as_json=as_json))
    diagnosed = done.diagnosed
    if as_json:
        print_json(verdict_record(diagnosed.verdict) | {"fix_trial": fix_trial_facts(done)})
    else:
        out.print(render_trial(done))
        out.print(
            f"--seed {plan.spec.seed} repeats these requests; `phasewise compare --history` shows all "
            "predictions",
            soft_wrap=True,
        )
    write_page(html, diagnosed.verdict, diagnosed.evidence, str(file))
    _leave(done)


def _leave(done: ComparisonResult | FixTrial) -> None:
    if done.cut_short:
        raise typer.Exit(130)
    if not done.trusted:
        raise typer.Exit(1)


def show_history(ledger: LedgerFile, *, as_json: bool) -> None:
    """Show every prediction with its outcome, and the score."""
    contents = ledger.read()
    if as_json:
        facts = {
            "v": LEDGER_VERSION,
            "score": asdict(score(contents.entries)),
            "entries": [asdict(entry) for entry in contents.entries],
            "passed_over": contents.passed_over,
        }
        print_json(facts, indented=True)
        return
    if contents.entries:
        out.print(render_ledger(contents.entries))
    else:
        say(f"{ledger.path} has no predictions yet: run `phasewise compare FLEET --fix`")
    if contents.passed_over:
        say(
            f"{contents.passed_over} lines were skipped: incomplete, or written by another version of "
            "phasewise"
        )


async def run_comparison(a: Arm, b: Arm, plan: ComparePlan) -> ComparisonResult:
    """Compare with live progress; Ctrl-C keeps the complete pairs."""
    interrupts = Interrupts()
    with interrupts.handled():
        return await compare_arms(a, b, plan, interrupts.measure, say, interrupts.forgives)
