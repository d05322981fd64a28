"""`phasewise diagnose TARGET`: slow to start or slow to stream, why, and what to do about it.

It reads options and hands over results; gathering is observe's, judging is diagnosis's, trying a fix is
diagnose_verify.py's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from phasewise.bench.comparison import FEWEST_PAIRS
from phasewise.bench.session import CacheState, RunSpec
from phasewise.cli import console
from phasewise.cli import workload_options as options
from phasewise.cli.admin_key import find_admin_key
from phasewise.cli.compare import DEFAULT_REQUESTS, WARM_UP_SHARE, check_control_pairs
from phasewise.cli.diagnose_options import VERIFYING, AdminKey, Costs, refuse_what_has_no_effect
from phasewise.cli.diagnose_outputs import HandOver
from phasewise.cli.diagnose_target import address_of, is_fleet_file, subject_of
from phasewise.cli.diagnose_verify import VerifyOrder, verify_fleet
from phasewise.cli.ledger import Ledger, chosen_ledger
from phasewise.cli.live_view import live_line
from phasewise.cli.reaching_verdicts import Known, reach_verdict
from phasewise.cli.verify_view import render as render_verification
from phasewise.cli.verify_view import verification_facts
from phasewise.compare.procedure import ComparePlan
from phasewise.compare.verdict import Rules
from phasewise.config import phasewise_home
from phasewise.errors import ConfigError
from phasewise.model.slo import parse_slo
from phasewise.observe.costs_file import load_fit
from phasewise.observe.evidence import Evidence
from phasewise.observe.probe import PROBE_REQUESTS, probe
from phasewise.observe.target import WatchTarget, identify
from phasewise.observe.watch import Watch
from phasewise.workload.arrivals import Spacing
from phasewise.workload.plan import PLAN_LIMIT, PlanSpec
from phasewise.workload.presets import PresetName, Shape
from phasewise.workload.traces import Trace

VERIFY_PAIRS = FEWEST_PAIRS
"""Every pair starts a fleet; a fix worth its price shows in the fewest pairs that can tell."""


def diagnose(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A phasewise gateway or a vLLM engine, http://host:port, or the file of a running fleet.",
        ),
    ],
    *,
    send_probe: Annotated[
        bool,
        typer.Option("--probe", help="Send a short, polite load of our own: 10 requests, at most 5 at once."),
    ] = False,
    window: Annotated[
        float,
        typer.Option(
            min=1.0,
            max=3600.0,
            help="Without --probe and --verify: how many seconds to watch live traffic.",
        ),
    ] = 20.0,
    slo: Annotated[
        str,
        typer.Option(help="What counts as slow, such as ttft=500ms,tpot=50ms. (default: ttft=1s,tpot=100ms)"),
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(help="The model to ask with --probe or --verify. (default: the first one served)"),
    ] = None,
    steps_url: Annotated[
        str | None,
        typer.Option(help="Where the engine's step recorder listens. (default: the engine's port + 10000)"),
    ] = None,
    costs: Costs = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PHASEWISE_API_KEY", help="Key for requests that we send ourselves.")
    ] = None,
    admin_key: AdminKey = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeat the prompts of another --probe, or the requests of a --verify."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write a page with pictures here; it opens without a network."
        ),
    ] = None,
    save_traffic: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Write when requests came, how long they were and which beginnings they shared, without any "
            "text: a trace that `bench`, `compare` and --verify replay with --trace.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Of a fleet file: start the fleet, put the load below on it, judge, predict what the first "
            "fix brings, and measure it against a changed copy.",
            rich_help_panel=VERIFYING,
        ),
    ] = False,
    ledger_file: Ledger = None,
    pairs: Annotated[
        int,
        typer.Option(
            min=FEWEST_PAIRS,
            help="Pairs of blocks to measure the fix with; each takes the start of a fleet.",
            rich_help_panel=VERIFYING,
        ),
    ] = VERIFY_PAIRS,
    control_pairs: Annotated[
        int,
        typer.Option(
            min=0,
            help=f"Pairs of the fleet against itself before, to learn the noise; 0 or at least "
            f"{FEWEST_PAIRS}.",
            rich_help_panel=VERIFYING,
        ),
    ] = 0,
    requests: Annotated[
        int | None,
        typer.Option(
            min=4,
            help=f"Requests in a block. (default: {DEFAULT_REQUESTS}, or all of a --trace)",
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
    timeout: options.Timeout = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as one JSON object.")] = False,
) -> None:
    """Say whether a model is slow to start or slow to stream, why, and what to do about it.

    Watches live traffic for a while, or sends a little of its own with --probe. Works on a stock vLLM from
    its /metrics, better with phasewise's step recorder in the engine, best through a phasewise gateway. With
    --verify and a fleet file it tries the fix that it suggests, and writes prediction and outcome to a ledger
    (`phasewise ledger` shows it). Ctrl-C ends the window early, with a verdict on what was seen.
    """
    objective, home = parse_slo(slo), phasewise_home(os.environ)
    fit = None if costs is None else load_fit(costs)
    handing_over = HandOver(report, save_traffic, as_json)
    handing_over.check()
    refuse_what_has_no_effect(ctx, verify=verify)
    if verify:
        _refuse_verify(target, send_probe, control_pairs)
        source = options.choose_source(
            preset, trace, prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
        )
        requests = _requests_in_block(source, requests)
        spec = RunSpec(
            plan=PlanSpec(
                source=source,
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
        left_out = round(WARM_UP_SHARE * requests)
        plan = ComparePlan(spec, Rules(objective, left_out), control_pairs=control_pairs, pairs=pairs)
        order = VerifyOrder(Path(target), plan, chosen_ledger(ledger_file), admin_key, fit)
        _verify(order, handing_over)
        return
    url = address_of(target, home)
    admin_key = admin_key or find_admin_key(url, home)
    found = asyncio.run(identify(url, admin_key, steps_url))
    evidence = asyncio.run(_gather(found, admin_key, send_probe, window, model, api_key, seed or 0))
    handing_over.hand_over(reach_verdict(evidence, objective, Known(fit)), evidence, subject_of(found))


def _refuse_verify(target: str, send_probe: bool, control_pairs: int) -> None:
    if not is_fleet_file(target):
        raise ConfigError(
            f"--verify starts and stops fleets, and {target} is a server that runs: it is never touched",
            hint="keep its traffic with --save-traffic window.jsonl, then run `phasewise diagnose fleet.yaml "
            "--verify --trace window.jsonl` with the fleet file of such an engine",
        )
    if send_probe:
        raise ConfigError("--verify was given together with --probe", hint="--verify puts its own load on")
    check_control_pairs(control_pairs)


def _requests_in_block(source: Shape | Trace, asked: int | None) -> int:
    if not isinstance(source, Trace):
        return DEFAULT_REQUESTS if asked is None else asked
    traced = len(source.requests)
    taken = min(PLAN_LIMIT if asked is None else asked, traced, PLAN_LIMIT)
    _say(f"a block is {taken} of the {traced} requests of the trace")
    return taken


def _verify(order: VerifyOrder, handing_over: HandOver) -> None:
    try:
        done = uvloop.run(verify_fleet(order, as_json=handing_over.as_json))
    except asyncio.CancelledError:
        _say("stopped before there was anything to judge")
        raise typer.Exit(130) from None
    diagnosed = done.diagnosed
    if handing_over.as_json:
        handing_over.print_json(diagnosed.verdict, {"verification": verification_facts(done)})
    else:
        console.out.print(render_verification(done))
        console.out.print(
            f"--seed {order.plan.spec.seed} repeats these requests; `phasewise ledger` keeps the score",
            soft_wrap=True,
        )
    handing_over.write_files(diagnosed.verdict, diagnosed.evidence, str(order.file))
    if done.cut_short:
        raise typer.Exit(130)
    if not done.trusted:
        raise typer.Exit(1)


async def _gather(
    target: WatchTarget,
    admin_key: str | None,
    send_probe: bool,
    window_s: float,
    model: str | None,
    api_key: str | None,
    seed: int,
) -> Evidence:
    watch = Watch(target, admin_key)
    try:
        await watch.begin()
        if send_probe:
            _say(f"probing {target.url} with {PROBE_REQUESTS} requests")
            try:
                return await watch.end(await probe(target.url, model, api_key, seed, _say_scene))
            except asyncio.CancelledError:
                _forgive_interrupt()
                return await watch.end()
        await _watch_for(window_s, target.url)
        return await watch.end()
    finally:
        watch.close()


async def _watch_for(window_s: float, url: str) -> None:
    began_s = time.monotonic()
    _say(f"watching {url} for {window_s:g} s; Ctrl-C ends it early, with a verdict")

    def words() -> str:
        return f"{time.monotonic() - began_s:.0f} of {window_s:g} s"

    async with live_line("watching", words, sys.stderr):
        try:
            await asyncio.sleep(window_s)
        except asyncio.CancelledError:
            _forgive_interrupt()


def _forgive_interrupt() -> None:
    """asyncio turns the first Ctrl-C into a cancellation; what was seen until then is worth a verdict."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _say_scene(title: str) -> None:
    _say(f"  {title}")


def _say(words: str) -> None:
    console.err.print(words, style="dim", soft_wrap=True, markup=False)
