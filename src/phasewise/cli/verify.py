"""`phasewise verify FLEET`: measures the fix that a diagnosis suggests, and keeps score of predictions."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer

from phasewise.api.targets import is_fleet_file
from phasewise.cli import options
from phasewise.cli.diagnose_outputs import HtmlPage, SaveTraffic, VerdictOutputs, say
from phasewise.cli.verify_fleet import VerifyOrder, verify_fleet
from phasewise.clients import event_loop
from phasewise.core.errors import UsageError
from phasewise.core.slo import parse_slo
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.experiments.compare.compare import (
    DEFAULT_REQUESTS,
    WARM_UP_SHARE,
    ComparePlan,
    check_control_pairs,
)
from phasewise.experiments.compare.verdict import Rules
from phasewise.experiments.verify.ledger import score
from phasewise.experiments.verify.ledger_file import LEDGER_VERSION, LedgerFile, default_ledger
from phasewise.fleet.config import phasewise_home
from phasewise.loadgen.session import CacheState, RunSpec
from phasewise.loadgen.statistics.comparison import FEWEST_PAIRS
from phasewise.loadgen.workload import choices
from phasewise.loadgen.workload.arrivals import Spacing
from phasewise.loadgen.workload.plan import PLAN_LIMIT, PlanSpec
from phasewise.loadgen.workload.presets import PresetName, Shape
from phasewise.loadgen.workload.traces import Trace
from phasewise.report import console
from phasewise.report.ledger_view import render as render_ledger
from phasewise.report.verify_view import render as render_verification
from phasewise.report.verify_view import verification_facts

VERIFY_PAIRS = FEWEST_PAIRS
"""Every pair starts a fleet, so the default is the fewest pairs that can show a worthwhile fix."""


def verify(
    ctx: typer.Context,
    fleet: Annotated[
        str | None,
        typer.Argument(
            metavar="FLEET",
            help="The fleet file. Its fleet is started and stopped; the file is not changed.",
        ),
    ] = None,
    *,
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="Show every prediction with its outcome, and the score. Starts no fleet."
        ),
    ] = False,
    ledger_file: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            metavar="FILE",
            help="The file of predictions and outcomes. (default: ledger.jsonl in the data folder)",
        ),
    ] = None,
    pairs: Annotated[
        int,
        typer.Option(
            min=FEWEST_PAIRS,
            help="Pairs of blocks to measure the fix with; each pair starts a fleet.",
        ),
    ] = VERIFY_PAIRS,
    control_pairs: Annotated[
        int,
        typer.Option(
            min=0,
            help=f"Pairs of the fleet against itself, to measure the noise first; 0 or at least "
            f"{FEWEST_PAIRS}.",
        ),
    ] = 0,
    costs: options.Costs = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=4,
            help=f"Requests per block. (default: {DEFAULT_REQUESTS}, or all of a --trace)",
            rich_help_panel=options.WHEN,
        ),
    ] = None,
    preset: options.Preset = PresetName.CHAT,
    trace: options.TraceFile = None,
    speed: options.Speed = 1.0,
    rate: options.Rate = None,
    spacing: options.SpacingChoice = Spacing.POISSON,
    burstiness: options.Burstiness = 1.0,
    concurrency: options.Concurrency = None,
    prompt_tokens: options.PromptTokens = None,
    output_tokens: options.OutputTokens = None,
    shared_prefix_tokens: options.SharedPrefixTokens = None,
    shared_prefixes: options.SharedPrefixes = None,
    turns: options.Turns = 1,
    think: options.Think = 1.0,
    cache: options.Cache = CacheState.COLD,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeat the requests of another run.", rich_help_panel=options.WHAT),
    ] = None,
    model: options.Model = None,
    api_key: options.ApiKey = None,
    admin_key: options.AdminKey = None,
    timeout: options.Timeout = 600.0,
    slo: options.SloText = "",
    html: HtmlPage = None,
    save_traffic: SaveTraffic = None,
    as_json: options.AsJson = False,
) -> None:
    """Apply the first fix that `diagnose` suggests to a copy of a fleet, and measure its effect.

    Starts the fleet, puts a load on it, diagnoses it, predicts the effect of the first fix, and compares the
    fleet with a changed copy. --history shows all predictions with their outcomes, and how many held.
    """
    ledger = LedgerFile(default_ledger(phasewise_home(os.environ)) if ledger_file is None else ledger_file)
    if history:
        options.reject_typed_beside(ctx, "--history", {"--ledger", "--json"})
        _show_history(ledger, as_json=as_json)
        return
    if fleet is None:
        raise typer.BadParameter("give a fleet file or --history", param_hint="FLEET")
    outputs = VerdictOutputs(html, save_traffic, as_json)
    outputs.check()
    _reject_address(fleet)
    check_control_pairs(control_pairs)
    source = choices.choose_source(
        preset, trace, prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
    )
    requests = _requests_in_block(source, requests)
    spec = RunSpec(
        plan=PlanSpec(
            source=source,
            load=choices.choose_load(rate, spacing, burstiness, concurrency, speed if trace else None),
            requests=requests,
            conversations=choices.choose_conversations(turns, think),
        ),
        seed=secrets.randbelow(2**31) if seed is None else seed,
        cache=cache,
        model=model,
        api_key=api_key,
        timeout_s=timeout,
    )
    rules = Rules(parse_slo(slo), round(WARM_UP_SHARE * requests))
    plan = ComparePlan(spec, rules, control_pairs=control_pairs, pairs=pairs)
    fit = None if costs is None else load_fit(costs)
    _verify(VerifyOrder(Path(fleet), plan, ledger, admin_key, fit), outputs)


def _reject_address(fleet: str) -> None:
    if not is_fleet_file(fleet):
        raise UsageError(
            f"{fleet} is not a fleet file: verify starts and stops its own fleets, and never changes a "
            "running server",
            hint="save its traffic with `phasewise diagnose URL --save-traffic window.jsonl`, then run "
            "`phasewise verify fleet.yaml --trace window.jsonl` with a fleet file of such an engine",
        )


def _requests_in_block(source: Shape | Trace, asked: int | None) -> int:
    if not isinstance(source, Trace):
        return DEFAULT_REQUESTS if asked is None else asked
    traced = len(source.requests)
    taken = min(PLAN_LIMIT if asked is None else asked, traced, PLAN_LIMIT)
    say(f"a block has {taken} of the trace's {traced} requests")
    return taken


def _verify(order: VerifyOrder, outputs: VerdictOutputs) -> None:
    try:
        done = event_loop.run(verify_fleet(order, as_json=outputs.as_json))
    except asyncio.CancelledError:
        say("stopped before anything was measured")
        raise typer.Exit(130) from None
    diagnosed = done.diagnosed
    if outputs.as_json:
        outputs.print_json(diagnosed.verdict, {"verification": verification_facts(done)})
    else:
        console.out.print(render_verification(done))
        console.out.print(
            f"--seed {order.plan.spec.seed} repeats these requests; `phasewise verify --history` shows all "
            "predictions",
            soft_wrap=True,
        )
    outputs.write_files(diagnosed.verdict, diagnosed.evidence, str(order.file))
    if done.cut_short:
        raise typer.Exit(130)
    if not done.trusted:
        raise typer.Exit(1)


def _show_history(ledger: LedgerFile, *, as_json: bool) -> None:
    contents = ledger.read()
    if as_json:
        facts = {
            "v": LEDGER_VERSION,
            "score": asdict(score(contents.entries)),
            "entries": [asdict(entry) for entry in contents.entries],
            "passed_over": contents.passed_over,
        }
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
        return
    if contents.entries:
        console.out.print(render_ledger(contents.entries))
    else:
        say(f"{ledger.path} has no predictions yet: run `phasewise verify FLEET`")
    if contents.passed_over:
        say(
            f"{contents.passed_over} lines were skipped: incomplete, or written by another version of "
            "phasewise"
        )
