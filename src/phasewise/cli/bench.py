"""`phasewise bench URL`: puts a workload on an address and says where the time went.

It only reads options, wires the parts together and prints; the measuring is bench/'s.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import uvloop

from phasewise.adapters.address import origin
from phasewise.adapters.open_files import allow_many_streams
from phasewise.bench.report_page import check_available, render_page
from phasewise.bench.report_table import render, render_max_rate, render_sweep
from phasewise.bench.session import CacheState, RunSpec
from phasewise.cli import workload_options as options
from phasewise.cli.admin_key import find_admin_key
from phasewise.cli.bench_diagnosis import Diagnosis, run_diagnosed
from phasewise.cli.bench_modes import Job, Results, parse_sweep, run_loads, run_search
from phasewise.cli.console import err, out
from phasewise.cli.diagnose_options import AdminKey, Costs
from phasewise.cli.diagnose_view import show
from phasewise.cli.output_files import refuse_unwritable
from phasewise.cli.page_facts import command_line, page_facts
from phasewise.config import phasewise_home
from phasewise.diagnosis.verdict_record import verdict_record
from phasewise.errors import ConfigError
from phasewise.model import timeline_record
from phasewise.model.slo import DEFAULT_SLO, parse_slo
from phasewise.observe.costs_file import load_fit
from phasewise.workload.arrivals import OpenLoop, Spacing
from phasewise.workload.plan import PlanSpec
from phasewise.workload.presets import PresetName

DEFAULT_REQUESTS = 32
FIRST_RATE_PER_S = 1.0


def bench(
    url: Annotated[str, typer.Argument(help="An engine or a gateway, such as http://127.0.0.1:8000.")],
    *,
    preset: options.Preset = PresetName.CHAT,
    trace: options.TraceFile = None,
    speed: options.Speed = 1.0,
    rate: options.Rate = None,
    spacing: options.SpacingChoice = Spacing.POISSON,
    burstiness: options.Burstiness = 1.0,
    concurrency: options.Concurrency = None,
    requests: Annotated[
        int | None,
        typer.Option(
            help=f"End after so many. (default {DEFAULT_REQUESTS}, without --duration)",
            rich_help_panel=options.WHEN,
        ),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Send for so many seconds, then wait.", rich_help_panel=options.WHEN)
    ] = None,
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
            help="Leave the first so many requests out. (default: until latencies are steady)",
            rich_help_panel=options.RESULT,
        ),
    ] = None,
    sweep: Annotated[
        str,
        typer.Option(
            help="Measure at each of several loads: rate=1,2,4 or concurrency=1,4,16.",
            rich_help_panel=options.SEVERAL,
        ),
    ] = "",
    find_max_rate: Annotated[
        bool,
        typer.Option(
            "--find-max-rate",
            help="Search the largest rate that meets the --slo.",
            rich_help_panel=options.SEVERAL,
        ),
    ] = False,
    attainment: Annotated[
        float,
        typer.Option(
            help="The share of requests that must meet the --slo at the largest rate.",
            rich_help_panel=options.SEVERAL,
        ),
    ] = 0.9,
    slo: options.SloText = "",
    model: options.Model = None,
    api_key: options.ApiKey = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Repeat the times, lengths and words of a run.", rich_help_panel=options.WHAT
        ),
    ] = None,
    timeout: options.Timeout = 600.0,
    steps_url: Annotated[
        str | None,
        typer.Option(
            help="The engine's step recorder. (default: the engine's port + 10000)",
            rich_help_panel=options.SERVER,
        ),
    ] = None,
    timelines: Annotated[
        Path | None,
        typer.Option(help="Write every request's timeline here (ndjson).", rich_help_panel=options.RESULT),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a report with pictures here; it opens without a network.",
            rich_help_panel=options.RESULT,
        ),
    ] = None,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose",
            help="Also watch the engines during the run, and say why it was as it was.",
            rich_help_panel=options.RESULT,
        ),
    ] = False,
    costs: Costs = None,
    admin_key: AdminKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure an engine or a gateway as its users would: TTFT, TPOT, stalls, goodput, and where TTFT goes."""
    spec = RunSpec(
        plan=PlanSpec(
            source=options.choose_source(
                preset, trace, prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
            ),
            load=options.choose_load(rate, spacing, burstiness, concurrency, speed if trace else None),
            requests=DEFAULT_REQUESTS if requests is None and duration is None else requests,
            duration_s=duration,
            conversations=options.choose_conversations(turns, think),
        ),
        seed=secrets.randbelow(2**32) if seed is None else seed,
        cache=cache,
        model=model,
        api_key=api_key,
        timeout_s=timeout,
        steps_url=steps_url,
    )
    job = Job(origin(url), spec, parse_slo(slo, DEFAULT_SLO), warm_up)
    _check_outputs(timelines, html)
    if diagnose and (sweep or find_max_rate):
        raise ConfigError(
            "--diagnose was given together with --sweep or --find-max-rate",
            hint="diagnose one load",
        )
    fit = None if costs is None else load_fit(costs)
    planned = None if find_max_rate else spec.plan.requests
    if warm_up is not None and planned is not None and warm_up >= planned:
        raise ConfigError(f"--warm-up {warm_up} of {planned} requests", hint="leave some to be counted")
    if find_max_rate:
        _check_search(sweep, requests, duration, concurrency, attainment)
        start = OpenLoop(rate or FIRST_RATE_PER_S, spacing, burstiness)
        work = _undiagnosed(run_search(job, start, attainment))
    elif sweep:
        if rate is not None or concurrency is not None:
            raise ConfigError(
                "--sweep was given together with --rate or --concurrency", hint="leave those out"
            )
        loads = parse_sweep(sweep, spacing, burstiness)
        for load in loads:
            replace(spec.plan, load=load)  # refused now rather than after the loads before it were measured
        work = _undiagnosed(run_loads(job, loads))
    elif diagnose:
        work = run_diagnosed(job, admin_key or find_admin_key(job.url, phasewise_home(os.environ)), fit)
    else:
        work = _undiagnosed(run_loads(job, (spec.plan.load,)))
    allow_many_streams()
    results, diagnosis = uvloop.run(work)
    if not results.measured:
        err.print("stopped before anything was measured")
        raise typer.Exit(130)
    _write_timelines(timelines, results)
    if html is not None:
        facts = page_facts(spec, results.measured[0].run.plan.shape)
        page = render_page(results.measured, title="phasewise bench", command=command_line(), facts=facts)
        html.write_text(page, encoding="utf-8")
        err.print(f"wrote {html}", soft_wrap=True)
    _print(results, spec, diagnosis, is_sweep=bool(sweep), as_json=as_json)
    _leave(results)


async def _undiagnosed(work: Awaitable[Results]) -> tuple[Results, Diagnosis | None]:
    return await work, None


def _check_search(
    sweep: str, requests: int | None, duration: float | None, concurrency: int | None, attainment: float
) -> None:
    if sweep or (requests, duration, concurrency) != (None, None, None):
        raise ConfigError(
            "--find-max-rate was given together with --sweep, --requests, --duration or --concurrency",
            hint="leave those out: the search chooses rates and how many requests each takes",
        )
    if not 0 < attainment < 1:
        raise ConfigError(f"--attainment {attainment:g}", hint="use a share between 0 and 1, such as 0.9")


def _check_outputs(timelines: Path | None, html: Path | None) -> None:
    # Found out before the run, not after it.
    if html is not None:
        check_available()
    refuse_unwritable("--timelines", timelines)
    refuse_unwritable("--html", html)


def _write_timelines(path: Path | None, results: Results) -> None:
    if path is not None:
        timelines = (timeline for entry in results.measured for timeline in entry.run.timelines)
        path.write_bytes(b"".join(timeline_record.encode(timeline) + b"\n" for timeline in timelines))


def _print(
    results: Results, spec: RunSpec, diagnosis: Diagnosis | None, *, is_sweep: bool, as_json: bool
) -> None:
    points = [(entry.label, entry.report) for entry in results.measured]
    if as_json:
        facts = {"seed": spec.seed} | _facts(results, is_sweep=is_sweep)
        if diagnosis is not None:
            facts["diagnosis"] = verdict_record(diagnosis.verdict)
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
        return
    if results.found is not None:
        out.print(render_max_rate(results.found, points))
    elif is_sweep:
        out.print(render_sweep(points))
    else:
        out.print(render(points[0][1]))
    out.print(f"--seed {spec.seed} repeats the times, lengths and words of this run", soft_wrap=True)
    if diagnosis is not None:
        out.print()
        show(out, diagnosis.verdict, diagnosis.subject)


def _facts(results: Results, *, is_sweep: bool) -> dict[str, Any]:
    points = [{"load": entry.label} | entry.report.to_dict() for entry in results.measured]
    if results.found is not None:
        return {"max_rate": asdict(results.found), "trials": points}
    return {"points": points} if is_sweep else points[0]


def _leave(results: Results) -> None:
    if results.cut_short:
        raise typer.Exit(130)
    if any(entry.report.void or not entry.report.succeeded for entry in results.measured):
        raise typer.Exit(1)
