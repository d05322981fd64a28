"""`phasewise bench URL`: sends a workload to an address and reports where the time went."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import asdict, replace
from typing import Annotated, Unpack

import typer

from phasewise.api.bench import (
    DEFAULT_REQUESTS,
    bench_result,
    check_warm_up,
    diagnosed,
    requests_or_default,
)
from phasewise.api.call import admin_key_or_default
from phasewise.api.diagnose import Diagnosis
from phasewise.api.load_options import MeasurementArguments, MeasurementOptions
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec
from phasewise.benchmark.workload.arrivals import OpenLoop
from phasewise.cli import options
from phasewise.cli.bench_modes import BenchResults, Job, parse_sweep, run_loads, run_search
from phasewise.cli.load_options import load_options
from phasewise.cli.measuring import page_facts, repeating_command
from phasewise.cli.options import (
    AdminKey,
    Costs,
    StepsUrl,
    print_json,
    reject_unwritable,
    say,
    write_timelines,
)
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams
from phasewise.clients.http_client import origin
from phasewise.core.errors import UsageError
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.report.bench.page import render_page
from phasewise.report.bench.table import render, render_max_rate, render_sweep
from phasewise.report.console import err, out
from phasewise.report.diagnosis.page import verdict_sections, verdict_strip
from phasewise.report.diagnosis.screen import show

FIRST_RATE_PER_S = 1.0


@load_options(
    MeasurementOptions,
    f"Number of requests to send. (default: {DEFAULT_REQUESTS}, unless --duration is given)",
)
def bench(
    url: Annotated[str, typer.Argument(help="An engine or a gateway, such as http://127.0.0.1:8000.")],
    *,
    html: options.HtmlPage = None,
    as_json: options.AsJson = False,
    timelines: options.Timelines = None,
    warm_up: Annotated[
        int | None,
        options.result_option(
            min=0, help="Requests to leave out at the start. (default: until latencies are steady)"
        ),
    ] = None,
    diagnose: Annotated[
        bool,
        options.diagnosis_option(
            "--diagnose", help="Also watch the engines during the run, and diagnose what was slow."
        ),
    ] = False,
    costs: Costs = None,
    admin_key: AdminKey = None,
    sweep: Annotated[
        str, options.series_option(help="Measure at several loads: rate=1,2,4 or concurrency=1,4,16.")
    ] = "",
    find_max_rate: Annotated[
        bool,
        options.series_option("--find-max-rate", help="Search for the highest rate that meets the --slo."),
    ] = False,
    attainment: Annotated[
        float,
        options.series_option(help="With --find-max-rate: the share of requests that must meet the --slo."),
    ] = 0.9,
    steps_url: StepsUrl = None,
    **load_arguments: Unpack[MeasurementArguments],
) -> None:
    """Measure an engine or a gateway from the client's side: TTFT, TPOT, stalls, goodput, and the parts of
    TTFT.
    """
    load = MeasurementOptions.of(load_arguments)
    spec = load.run_spec(
        load.source(say),
        requests_or_default(load.requests, load.duration),
        admin_key=admin_key_or_default(admin_key, origin(url)),
        steps_url=steps_url,
    )
    job = Job(origin(url), spec, load.objectives(), warm_up)
    # Fail before the run rather than after it.
    reject_unwritable("--timelines", timelines)
    reject_unwritable("--html", html)
    if diagnose and (sweep or find_max_rate):
        raise UsageError(
            "--diagnose was given together with --sweep or --find-max-rate",
            hint="run --diagnose with a single load",
        )
    fit = None if costs is None else load_fit(costs)
    check_warm_up(warm_up, None if find_max_rate else spec.plan.requests)
    if find_max_rate:
        _check_search(sweep, load, attainment)
        start = OpenLoop(load.rate or FIRST_RATE_PER_S, load.spacing, load.burstiness)
        work = _undiagnosed(run_search(job, start, attainment))
    elif sweep:
        if load.rate is not None or load.concurrency is not None:
            raise UsageError(
                "--sweep was given together with --rate or --concurrency",
                hint="remove --rate and --concurrency",
            )
        loads = parse_sweep(sweep, load.spacing, load.burstiness)
        for each in loads:
            replace(spec.plan, load=each)  # raises now if invalid, before the first load is measured
        work = _undiagnosed(run_loads(job, loads))
    elif diagnose:
        work = diagnosed(job.url, spec, job.slo, fit, lambda: run_loads(job, (spec.plan.load,)), _only_run)
    else:
        work = _undiagnosed(run_loads(job, (spec.plan.load,)))
    allow_many_streams()
    results, diagnosis = event_loop.run(work)
    if not results.measured:
        err.print("stopped before anything was measured")
        raise typer.Exit(130)
    write_timelines(timelines, (timeline for entry in results.measured for timeline in entry.run.timelines))
    if html is not None:
        html.write_text(_page(results, spec, diagnosis), encoding="utf-8")
        say(f"wrote {html}")
    _print(results, spec, diagnosis, is_sweep=bool(sweep), as_json=as_json)
    _leave(results)


def _only_run(results: BenchResults) -> BenchRun | None:
    return results.measured[0].run if results.measured else None


async def _undiagnosed(work: Awaitable[BenchResults]) -> tuple[BenchResults, Diagnosis | None]:
    return await work, None


def _page(results: BenchResults, spec: RunSpec, diagnosis: Diagnosis | None) -> str:
    judged = {}
    if diagnosis is not None:
        judged = {
            "verdict_strip": verdict_strip(diagnosis.details, diagnosis.target, "Synthetic load"),
            "diagnosis": verdict_sections(diagnosis.details, diagnosis.evidence),
        }
    return render_page(
        results.measured,
        command=repeating_command(spec.seed),
        circumstances=page_facts(spec, results.measured[0].run.plan.shape),
        **judged,
    )


def _check_search(sweep: str, load: MeasurementOptions, attainment: float) -> None:
    if sweep or (load.requests, load.duration, load.concurrency) != (None, None, None):
        raise UsageError(
            "--find-max-rate was given together with --sweep, --requests, --duration or --concurrency",
            hint="remove them: the search chooses the rates and the number of requests",
        )
    if not 0 < attainment < 1:
        raise UsageError(f"--attainment {attainment:g}", hint="give a share between 0 and 1, such as 0.9")


def _print(
    results: BenchResults, spec: RunSpec, diagnosis: Diagnosis | None, *, is_sweep: bool, as_json: bool
) -> None:
    points = [(entry.label, entry.report) for entry in results.measured]
    if as_json:
        if results.found is None and not is_sweep:
            typer.echo(bench_result(points[0][1], spec.seed, points[0][0], diagnosis).to_json())
        else:
            measured = [{"load": label} | report.to_dict() for label, report in points]
            facts: dict[str, object] = {"points": measured}
            if results.found is not None:
                facts = {"max_rate": asdict(results.found), "trials": measured}
            print_json({"seed": spec.seed} | facts, indented=True)
        return
    if results.found is not None:
        out.print(render_max_rate(results.found, points))
    elif is_sweep:
        out.print(render_sweep(points))
    else:
        out.print(render(points[0][1]))
    out.print(f"--seed {spec.seed} repeats the arrival times, lengths and words of this run", soft_wrap=True)
    if diagnosis is not None:
        out.print()
        show(out, diagnosis.details, diagnosis.target)


def _leave(results: BenchResults) -> None:
    if results.cut_short:
        raise typer.Exit(130)
    if any(entry.report.void or not entry.report.succeeded for entry in results.measured):
        raise typer.Exit(1)
