"""`phasewise bench URL`: puts a workload on an address and says where the time went.

It only reads options, wires the parts together and prints; the measuring is bench/'s.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer
import uvloop

from phasewise.bench.max_rate import MaxRate, TrialOutcome, clustering_of, search_max_rate
from phasewise.bench.report import build_report
from phasewise.bench.report_page import Measured, check_available, render_page
from phasewise.bench.report_table import render, render_max_rate, render_sweep
from phasewise.bench.session import CacheState, RunSpec
from phasewise.bench.wording import load_in_words
from phasewise.cli import workload_options as options
from phasewise.cli.address import origin
from phasewise.cli.console import err, out
from phasewise.cli.measuring import allow_many_streams, measure_with_view
from phasewise.cli.page_facts import command_line, page_facts
from phasewise.errors import ConfigError
from phasewise.model import timeline_record
from phasewise.model.latency import meets
from phasewise.model.slo import DEFAULT_SLO, Slo, parse_slo
from phasewise.workload.arrivals import ClosedLoop, Load, OpenLoop, Spacing
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
        int | None, typer.Option(help=f"End after so many. (default {DEFAULT_REQUESTS}, without --duration)")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Send for so many seconds, then wait.")] = None,
    prompt_tokens: options.PromptTokens = None,
    output_tokens: options.OutputTokens = None,
    shared_prefix_tokens: options.SharedPrefixTokens = None,
    shared_prefixes: options.SharedPrefixes = None,
    turns: options.Turns = 1,
    think: options.Think = 1.0,
    cache: options.Cache = CacheState.COLD,
    warm_up: Annotated[
        int | None,
        typer.Option(help="Leave the first so many requests out. (default: until latencies are steady)"),
    ] = None,
    sweep: Annotated[
        str, typer.Option(help="Measure at each of several loads: rate=1,2,4 or concurrency=1,4,16.")
    ] = "",
    find_max_rate: Annotated[
        bool, typer.Option("--find-max-rate", help="Search the largest rate that meets the --slo.")
    ] = False,
    attainment: Annotated[
        float, typer.Option(help="The share of requests that must meet the --slo at the largest rate.")
    ] = 0.9,
    slo: options.SloText = "",
    model: options.Model = None,
    api_key: options.ApiKey = None,
    seed: Annotated[int | None, typer.Option(help="Repeat the times, lengths and words of a run.")] = None,
    timeout: options.Timeout = 600.0,
    steps_url: Annotated[
        str | None, typer.Option(help="The engine's step recorder. (default: the engine's port + 10000)")
    ] = None,
    timelines: Annotated[
        Path | None, typer.Option(help="Write every request's timeline here (ndjson).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a report with pictures here; it opens without a network.")
    ] = None,
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
    allow_many_streams()
    found = None
    if find_max_rate:
        _check_search(sweep, requests, duration, attainment)
        start = OpenLoop(rate or FIRST_RATE_PER_S, spacing, burstiness)
        found, measured = uvloop.run(find_largest_rate(job.measure, start, attainment, spec.seed))
    elif sweep:
        measured = uvloop.run(_sweep(job, parse_sweep(sweep, spacing, burstiness)))
    else:
        measured = [uvloop.run(job.measure(spec.plan.load))]
    _write_timelines(timelines, measured)
    if html is not None:
        html.write_text(
            render_page(measured, title="phasewise bench", command=command_line(), facts=page_facts(spec))
        )
        err.print(f"wrote {html}", soft_wrap=True)
    _print(measured, found, spec, sweep=bool(sweep), as_json=as_json)
    _leave(measured)


@dataclass(frozen=True, slots=True)
class Job:
    """What every run of one command has in common."""

    url: str
    spec: RunSpec
    slo: Slo
    warm_up: int | None = None

    async def measure(
        self, load: Load, label: str = "measuring", requests: int | None = None, seed: int | None = None
    ) -> Measured:
        """Measure at one load, of `requests` requests and from a seed of its own if given."""
        plan = replace(self.spec.plan, load=load, requests=requests or self.spec.plan.requests)
        spec = replace(self.spec, plan=plan, seed=self.spec.seed if seed is None else seed)
        run = await measure_with_view(self.url, spec, label)
        rng = np.random.default_rng(spec.seed)
        return Measured(run, build_report(run, self.slo, rng, self.warm_up), load_in_words(load))


def parse_sweep(text: str, spacing: Spacing, burstiness: float) -> tuple[Load, ...]:
    """`rate=1,2,4` or `concurrency=1,4,16` as loads."""
    name, _, values = text.partition("=")
    try:
        if name == "rate":
            return tuple(OpenLoop(float(value), spacing, burstiness) for value in values.split(","))
        if name == "concurrency":
            return tuple(ClosedLoop(int(value)) for value in values.split(","))
    except ValueError:
        pass
    raise ConfigError(f"--sweep {text!r}", hint="write rate=1,2,4 or concurrency=1,4,16")


async def _sweep(job: Job, loads: tuple[Load, ...]) -> list[Measured]:
    measured: list[Measured] = []
    for number, load in enumerate(loads, 1):
        measured.append(await job.measure(load, f"{number}/{len(loads)}, {load_in_words(load)}"))
        if measured[-1].run.cut_short:
            break
    return measured


def _check_search(sweep: str, requests: int | None, duration: float | None, attainment: float) -> None:
    if sweep or requests is not None or duration is not None:
        raise ConfigError(
            "--find-max-rate was given together with --sweep, --requests or --duration",
            hint="leave those out: the search chooses rates and how many requests each takes",
        )
    if not 0 < attainment < 1:
        raise ConfigError(f"--attainment {attainment:g}", hint="use a share between 0 and 1, such as 0.9")


async def find_largest_rate(
    measure: Callable[[OpenLoop, str, int, int], Awaitable[Measured]],
    start: OpenLoop,
    attainment: float,
    seed: int,
) -> tuple[MaxRate | None, list[Measured]]:
    """Search as bench/max_rate.py says; no answer where it was cut short or the generator fell behind."""
    measured: list[Measured] = []
    search = search_max_rate(start.rate_per_s, attainment)
    trial = next(search)
    while True:
        number = len(measured) + 1
        load = replace(start, rate_per_s=trial.rate_per_s)
        label = f"trial {number}, {load_in_words(load)}"
        # A trial again at the same rate must bring other requests.
        measured.append(await measure(load, label, trial.requests, seed + number))
        if measured[-1].run.cut_short or measured[-1].report.void:
            return None, measured
        try:
            trial = search.send(_outcome(measured[-1]))
        except StopIteration as ended:
            result: MaxRate = ended.value
            return result, measured


def _outcome(measured: Measured) -> TrialOutcome:
    report = measured.report
    met = [meets(timeline, report.slo) for timeline in measured.counted]
    return TrialOutcome(sum(met), len(met), report.window.settled, clustering_of(met))


def _check_outputs(timelines: Path | None, html: Path | None) -> None:
    # Found out before the run, not after it.
    for option, path in (("--timelines", timelines), ("--html", html)):
        if path is not None:
            try:
                path.open("ab").close()
            except OSError as error:
                raise ConfigError(
                    f"{option} {path} cannot be written ({error.strerror})", hint="give another file"
                ) from error
    if html is not None:
        check_available()


def _write_timelines(path: Path | None, measured: list[Measured]) -> None:
    if path is not None:
        timelines = (timeline for entry in measured for timeline in entry.run.timelines)
        path.write_bytes(b"".join(timeline_record.encode(timeline) + b"\n" for timeline in timelines))


def _print(
    measured: list[Measured], found: MaxRate | None, spec: RunSpec, *, sweep: bool, as_json: bool
) -> None:
    points = [(entry.label, entry.report) for entry in measured]
    if as_json:
        facts = {"seed": spec.seed} | _facts(measured, found, sweep=sweep)
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
        return
    if found is not None:
        out.print(render_max_rate(found, points))
    elif len(measured) > 1:
        out.print(render_sweep(points))
    else:
        out.print(render(measured[0].report))
    out.print(f"--seed {spec.seed} repeats the times, lengths and words of this run", soft_wrap=True)


def _facts(measured: list[Measured], found: MaxRate | None, *, sweep: bool) -> dict[str, Any]:
    points = [{"load": entry.label} | entry.report.to_dict() for entry in measured]
    if found is not None:
        return {"max_rate": asdict(found), "trials": points}
    return {"points": points} if sweep or len(points) > 1 else points[0]


def _leave(measured: list[Measured]) -> None:
    if any(entry.run.cut_short for entry in measured):
        raise typer.Exit(130)
    if any(entry.report.void or not entry.report.succeeded for entry in measured):
        raise typer.Exit(1)
