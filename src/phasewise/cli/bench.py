"""`phasewise bench URL`: puts a workload on an address and says where the time went.

It only reads options, wires the parts together and prints; the measuring is bench/'s.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated

import orjson
import typer
import uvloop
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.bench.generator import BenchRun, LoadGenerator, Progress, RunLimits
from phasewise.bench.report import BenchReport, build_report
from phasewise.bench.report_table import render
from phasewise.bench.target import find_target, fit_prompts
from phasewise.cli.address import origin
from phasewise.cli.console import err, out
from phasewise.errors import ConfigError
from phasewise.model import timeline_record
from phasewise.model.slo import DEFAULT_SLO, parse_slo
from phasewise.workload.arrivals import ClosedLoop, Load, OpenLoop, Spacing
from phasewise.workload.lengths import Lengths
from phasewise.workload.plan import CONTEXT_TOKENS, PlanSpec, make_plan
from phasewise.workload.presets import PRESETS, PresetName, Shape

DEFAULT_CONCURRENCY = 4
DEFAULT_REQUESTS = 32


def bench(
    url: Annotated[str, typer.Argument(help="An engine or a gateway, such as http://127.0.0.1:8000.")],
    *,
    preset: Annotated[PresetName, typer.Option(help="The kind of traffic.")] = PresetName.CHAT,
    rate: Annotated[float | None, typer.Option(help="Requests per second, whatever the replies do.")] = None,
    spacing: Annotated[Spacing, typer.Option(help="How arrivals at a --rate are spread.")] = Spacing.POISSON,
    concurrency: Annotated[
        int | None,
        typer.Option(help=f"Requests open at once instead of a rate. (default {DEFAULT_CONCURRENCY})"),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(help=f"End after so many. (default {DEFAULT_REQUESTS}, without --duration)")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Send for so many seconds, then wait.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Fix the prompts' length.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Fix the outputs' length.")] = None,
    shared_prefix_tokens: Annotated[
        int | None, typer.Option(help="Begin every prompt with the same text of this length; 0 for none.")
    ] = None,
    slo: Annotated[str, typer.Option(help="What counts as fast enough: ttft=500ms,tpot=50ms.")] = "",
    model: Annotated[
        str | None, typer.Option(help="The model to ask for. (default: the first one served)")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PHASEWISE_API_KEY", help="Sent as a bearer token.", show_envvar=True)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeat the workload of another run.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one request may take.")] = 600.0,
    timelines: Annotated[
        Path | None, typer.Option(help="Write every request's timeline here (ndjson).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure an engine or a gateway as its users would: TTFT, TPOT, stalls, goodput, and where TTFT goes."""
    objective = parse_slo(slo, DEFAULT_SLO)
    spec = PlanSpec(
        shape=choose_shape(preset, prompt_tokens, output_tokens, shared_prefix_tokens),
        load=choose_load(rate, spacing, concurrency),
        requests=DEFAULT_REQUESTS if requests is None and duration is None else requests,
        duration_s=duration,
    )
    # A new seed each time: the prompts of the last run may still lie in the engine's prefix cache.
    chosen_seed = secrets.randbelow(2**32) if seed is None else seed
    _check_writable(timelines)
    run = uvloop.run(_measure(url, spec, chosen_seed, model, api_key, timeout))
    _write_timelines(timelines, run)
    report = build_report(run, objective)
    _print(report, chosen_seed, preset, as_json)
    if run.cut_short:
        raise typer.Exit(130)
    if not report.succeeded:
        raise typer.Exit(1)


def choose_shape(
    preset: PresetName, prompt_tokens: int | None, output_tokens: int | None, shared_prefix_tokens: int | None
) -> Shape:
    """The preset with what was asked for explicitly put in its place."""
    shape = PRESETS[preset]
    if prompt_tokens is not None:
        shape = replace(shape, prompt=Lengths.fixed(prompt_tokens))
        if shared_prefix_tokens is None:
            # Whoever fixes the prompt means a plain one: a preset's own system prompt may not even fit.
            shape = replace(shape, shared_prefix_tokens=0)
    if output_tokens is not None:
        shape = replace(shape, output=Lengths.fixed(output_tokens))
    if shared_prefix_tokens is not None:
        if not 0 <= shared_prefix_tokens < shape.prompt.low_tokens:
            raise ConfigError(
                f"a shared prefix of {shared_prefix_tokens} tokens does not fit prompts of "
                f"{shape.prompt.low_tokens}",
                hint="raise --prompt-tokens or lower --shared-prefix-tokens",
            )
        shape = replace(shape, shared_prefix_tokens=shared_prefix_tokens, shared_share=1.0)
    return shape


def choose_load(rate: float | None, spacing: Spacing, concurrency: int | None) -> Load:
    """An open loop if a rate was given, else a closed one."""
    if rate is not None and concurrency is not None:
        raise ConfigError(
            "--rate and --concurrency were both given", hint="give one: they exclude each other"
        )
    if rate is not None:
        return OpenLoop(rate, spacing)
    return ClosedLoop(DEFAULT_CONCURRENCY if concurrency is None else concurrency)


async def _measure(
    url: str, spec: PlanSpec, seed: int, model: str | None, api_key: str | None, timeout_s: float
) -> BenchRun:
    rng = Random(seed)  # noqa: S311 - a workload to be repeated, no secret
    client = HttpClient(origin(url), Timeouts(head_s=timeout_s, idle_s=timeout_s))
    try:
        target = await find_target(client, model, api_key)
        spec = replace(spec, context_tokens=target.context_tokens or CONTEXT_TOKENS)
        plan = await fit_prompts(client, target, make_plan(spec, rng), rng)
        with _progress_bar(len(plan.requests)) as show:
            generator = LoadGenerator(
                client,
                target,
                plan,
                run_id=f"bench-{secrets.token_hex(4)}",
                limits=RunLimits(request_s=timeout_s),
                on_progress=show,
            )
            with _stopped_by_interrupt(generator):
                return await generator.run()
    finally:
        client.close()


@contextmanager
def _stopped_by_interrupt(generator: LoadGenerator) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # A second Ctrl-C ends the program as usual.
        loop.remove_signal_handler(signal.SIGINT)
        generator.stop()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def _progress_bar(planned: int) -> Iterator[Callable[[Progress], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBar(*columns, console=err, transient=True) as bar:
        task = bar.add_task("measuring", total=planned)

        def show(progress: Progress) -> None:
            failed = f", {progress.failed} failed" if progress.failed else ""
            bar.update(task, completed=progress.done, description=f"{progress.in_flight} in flight{failed}")

        yield show


def _check_writable(path: Path | None) -> None:
    # Found out before the run, not after it.
    if path is not None:
        try:
            path.open("ab").close()
        except OSError as error:
            raise ConfigError(
                f"--timelines {path} cannot be written ({error.strerror})", hint="give another file"
            ) from error


def _write_timelines(path: Path | None, run: BenchRun) -> None:
    if path is not None:
        path.write_bytes(b"".join(timeline_record.encode(timeline) + b"\n" for timeline in run.timelines))


def _print(report: BenchReport, seed: int, preset: PresetName, as_json: bool) -> None:
    if as_json:
        facts = report.to_dict() | {"seed": seed, "preset": preset.value}
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
        return
    out.print(render(report))
    out.print(
        f"seed {seed}: --seed {seed} repeats these prompts, then from a warm prefix cache", soft_wrap=True
    )
