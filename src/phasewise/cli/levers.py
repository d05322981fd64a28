"""`phasewise levers`: measures every serving lever, off and on, on this machine with this model."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Annotated

import orjson
import psutil
import typer

from phasewise.cli import engine_size
from phasewise.cli.help_style import RESULT
from phasewise.cli.measuring import command_line, measure_with_view
from phasewise.cli.outputs import Interrupts
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams
from phasewise.core.errors import ConfigError
from phasewise.experiments.lever_runs.circumstances import Circumstances, circumstances
from phasewise.experiments.lever_runs.engine_facts import read_facts
from phasewise.experiments.lever_runs.engines import running_engines
from phasewise.experiments.lever_runs.launch import (
    GPU_SHARE,
    EngineSize,
    FleetLauncher,
    handicapped,
    model_or_quantized,
    own_context_tokens,
    shared_gpu_flags,
    size_here,
)
from phasewise.experiments.lever_runs.measure import LeverRun, LeverTools, StoppedEarly
from phasewise.experiments.lever_runs.outputs import OutputReader
from phasewise.experiments.lever_runs.paging import PAGED_TRAFFIC
from phasewise.experiments.levers.agenda import (
    QUICK,
    WHOLE,
    Effort,
    chosen,
    left_to_do,
    measurable,
    seconds_left,
)
from phasewise.experiments.levers.cases import BASE, CASES
from phasewise.experiments.levers.catalogue import MARGIN, Case, digest
from phasewise.experiments.levers.results import Results, ResultsFile, open_results
from phasewise.fleet.config import DEMO_MODEL, byte_size, phasewise_home
from phasewise.fleet.engines.command import DEFAULT_CPU_KV_BYTES
from phasewise.fleet.engines.demo_model import DEMO_MODELS, resolve_model
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.engines.model_config_file import CONFIG_FILE
from phasewise.fleet.engines.quantized_model import source_digest
from phasewise.fleet.local.placement import this_machine
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import RunSpec
from phasewise.loadgen.statistics.comparison import FEWEST_PAIRS
from phasewise.report.console import err, out
from phasewise.report.levers.facts import as_facts, as_listing
from phasewise.report.levers.markdown import render_markdown
from phasewise.report.levers.page import render_page
from phasewise.report.levers.table import render, render_list

WHICH = "Measurements"

ENGINE_MEMORY_BYTES = 2.5 * 2**30
"""What an engine on a CPU needs besides its KV cache."""
MOST_ENGINES = 3


def levers(
    model: Annotated[
        str, typer.Option(help="A known name, a folder or a Hugging Face id.", rich_help_panel=WHICH)
    ] = DEMO_MODEL,
    only: Annotated[
        str,
        typer.Option(
            metavar="LEVER,...",
            help="Measure only this lever, as named by --list. May be given several times.",
            rich_help_panel=WHICH,
        ),
    ] = "",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Fewer rows and shorter blocks: under ten minutes on a small machine.",
            rich_help_panel=WHICH,
        ),
    ] = False,
    list_only: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List what would be measured, and what physics predicts.",
            rich_help_panel=WHICH,
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat rows that an earlier run has measured.", rich_help_panel=WHICH),
    ] = False,
    pairs: Annotated[
        int | None,
        typer.Option(
            min=FEWEST_PAIRS,
            help=f"Pairs of blocks per row. (default: {WHOLE.pairs}, with --quick {QUICK.pairs})",
            rich_help_panel=WHICH,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Repeat the requests of another run.", rich_help_panel=WHICH)
    ] = 1,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write an HTML page with the table as a chart.", rich_help_panel=RESULT),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(help="Also write the table as a Markdown page.", rich_help_panel=RESULT),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as one JSON object.", rich_help_panel=RESULT)
    ] = False,
    cores: engine_size.Cores = None,
    gpus: engine_size.Gpus = None,
    kv_cache_memory_bytes: engine_size.KvCacheMemory = None,
    context: engine_size.Context = None,
    engine_python: engine_size.Python = None,
) -> None:
    """Measure every serving lever off and on, on this machine and with this model.

    Each lever is measured with traffic that it should affect and traffic that it should not. Results are
    saved as they come: after Ctrl-C, the same command continues.
    """
    effort = QUICK if quick else WHOLE
    cases = chosen(CASES, [name.strip() for name in only.split(",") if name.strip()], effort)
    if list_only:
        _list(cases, as_json)
        return
    effort = replace(effort, pairs=pairs or effort.pairs)
    engine = engine_size.engine_to_start(engine_python)
    home = phasewise_home(os.environ)
    size = EngineSize(
        cores=cores, gpus=gpus, kv_cache_memory_bytes=kv_cache_memory_bytes, context_tokens=context
    )
    file = open_results(home, _circumstances(model, home, engine, size, effort, seed), again=again)
    if again:
        file.forget(cases)
    _greet(cases, effort, file)
    allow_many_streams()
    finished = event_loop.run(_measure(cases, effort, file, home))
    _write_results(cases, file.results, html, markdown, as_json)
    if not finished:
        # With --again it would repeat what it has just measured.
        command = "the same command without --again" if again else "the same command"
        err.print(f"stopped; {command} continues from here", soft_wrap=True)
        raise typer.Exit(130)
    if any(left_to_do(case, file.results) for case in measurable(cases, file.results)):
        raise typer.Exit(1)


def _list(cases: tuple[Case, ...], as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(as_listing(cases), option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render_list(cases))


def _circumstances(
    model: str, home: Path, engine: EngineEnvironment, asked: EngineSize, effort: Effort, seed: int
) -> Circumstances:
    source = resolve_model(model, home)
    # A folder is recorded by its full path, so that results of two folders of the same name stay apart.
    identity = model if model in DEMO_MODELS else source
    folder = Path(source)
    return circumstances(
        identity,
        source_digest(folder)[:12] if (folder / CONFIG_FILE).is_file() else "",
        engine,
        size_here(asked, this_machine(engine.device), own_context_tokens(model, home, os.environ)),
        effort=effort.name,
        pairs=effort.pairs,
        seed=seed,
        # Noise floors and paging are measured on the base engine, rows against it.
        rules_digest=digest(effort, MARGIN, BASE.levers, PAGED_TRAFFIC.key, GPU_SHARE),
    )


def _greet(cases: tuple[Case, ...], effort: Effort, file: ResultsFile) -> None:
    here = measurable(cases, file.results)
    rows = sum(len(case.rows) for case in here)
    left = sum(len(left_to_do(case, file.results)) for case in here)
    if left < rows:
        _say(f"continuing {file.path}: {rows - left} of {rows} rows are done (--again repeats them)")
    minutes = seconds_left(cases, effort, file.results) / 60
    _say(f"{left} rows to measure, about {max(minutes, 1):.0f} min")


async def _measure(cases: tuple[Case, ...], effort: Effort, file: ResultsFile, home: Path) -> bool:
    """Measure with live progress; False after Ctrl-C."""
    interrupts = Interrupts()

    async def measure(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, interrupts)

    outputs = OutputReader(file.results.circumstances.seed)
    tools = LeverTools(measure, handicapped, outputs.compare, read_facts, _say, interrupts.forgives)
    # SIGTERM and SIGHUP also stop the engines, so that none is left behind.
    ends = interrupts.handled(SIGTERM, SIGHUP)
    with ends, tempfile.TemporaryDirectory(prefix="phasewise-levers-") as scratch:
        try:
            where = file.results.circumstances
            model_of = model_or_quantized(where.model, home, _say)
            launcher = FleetLauncher(
                home, Path(scratch), model_of, shared_gpu_flags(where.device), where.engine
            )
            one_by_one = where.device != "cpu"
            async with running_engines(
                launcher.launch, _most_engines(file), _say, one_by_one=one_by_one
            ) as engines:
                await LeverRun(cases, effort, file, engines, tools).run()
        except StoppedEarly:
            return False
        except asyncio.CancelledError:
            if not interrupts.forgives():
                raise
            return False
    return True


def _most_engines(file: ResultsFile) -> int:
    where = file.results.circumstances
    if where.device != "cpu":
        return 2
    kv_cache_memory_bytes = where.engine.kv_cache_memory_bytes
    kv_bytes = DEFAULT_CPU_KV_BYTES if kv_cache_memory_bytes is None else byte_size(kv_cache_memory_bytes)
    return max(
        2, min(MOST_ENGINES, int(psutil.virtual_memory().available / (ENGINE_MEMORY_BYTES + kv_bytes)))
    )


def _write_results(
    cases: tuple[Case, ...], results: Results, html: Path | None, markdown: Path | None, as_json: bool
) -> None:
    """Print the results, including those of earlier runs, and write the requested files."""
    if html is not None:
        _write(html, render_page(cases, results, command_line()))
    if markdown is not None:
        _write(markdown, render_markdown(cases, results, command_line()))
    if as_json:
        typer.echo(orjson.dumps(as_facts(cases, results), option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render(cases, results))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror})",
            hint="the results are saved: run the same command with another file to write them",
        ) from error
    err.print(f"wrote {path}", soft_wrap=True)


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)
