"""`phasewise levers`: what every serving lever does on this machine, with this model, measured off and on.

It reads options, shows progress and prints; what is measured in which order is levers/procedure.py's.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Annotated

import orjson
import typer
import uvloop

from phasewise.adapters.open_files import allow_many_streams
from phasewise.bench.comparison import FEWEST_PAIRS
from phasewise.bench.report_page import check_available
from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec
from phasewise.cli.console import err, out
from phasewise.cli.engine import EnginePython, current_engine
from phasewise.cli.interrupts import Interrupts
from phasewise.cli.measuring import measure_with_view
from phasewise.cli.page_facts import command_line
from phasewise.config import DEMO_MODEL, byte_size, phasewise_home
from phasewise.errors import ConfigError
from phasewise.fleet.demo_model import DEMO_MODELS, resolve_model
from phasewise.fleet.engine_command import DEFAULT_CPU_KV_BYTES
from phasewise.fleet.engine_env import EngineEnvironment
from phasewise.fleet.machine import this_machine
from phasewise.fleet.model_config_file import CONFIG_FILE
from phasewise.fleet.quantised_model import source_digest
from phasewise.levers.agenda import QUICK, WHOLE, Effort, chosen, left_to_do, measurable, seconds_left
from phasewise.levers.cases import BASE, CASES
from phasewise.levers.catalogue import MARGIN, Case, digest
from phasewise.levers.circumstances import Circumstances, circumstances, memory_bytes
from phasewise.levers.engine_facts import read_facts
from phasewise.levers.engine_size import EngineSize, own_context_tokens, size_here
from phasewise.levers.engines import running_engines
from phasewise.levers.facts import as_facts
from phasewise.levers.launch import FleetLauncher, model_or_quantised, restrained
from phasewise.levers.listing import as_listing
from phasewise.levers.markdown import render_markdown
from phasewise.levers.outputs import OutputReader
from phasewise.levers.page import render_page
from phasewise.levers.paging import PAGED_TRAFFIC
from phasewise.levers.procedure import Procedure, StoppedEarly, Tools
from phasewise.levers.results import Results, ResultsFile, open_results
from phasewise.levers.table import render, render_list

ENGINE_MEMORY_BYTES = 2.5 * 2**30
"""Of an engine on a CPU, beside its KV cache."""
MOST_ENGINES = 3
GPU_SHARE = "0.42"
FEWEST_CONTEXT_TOKENS = 2304
"""The longest prompts here have 2,000 tokens."""


def levers(
    model: Annotated[str, typer.Option(help="A known name, a folder or a Hugging Face id.")] = DEMO_MODEL,
    only: Annotated[
        str, typer.Option(metavar="LEVER,...", help="Measure these levers alone, as --list names them.")
    ] = "",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer rows and shorter blocks: under ten minutes on a small machine."),
    ] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="Print what would be measured, and what physics expects of it.")
    ] = False,
    pairs: Annotated[
        int | None,
        typer.Option(
            min=FEWEST_PAIRS,
            help=f"Pairs of blocks for each row. (default: {WHOLE.pairs}, with --quick {QUICK.pairs})",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure anew what an earlier run has measured.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Repeat the requests of another run.")] = 1,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores for each engine, on a CPU. (default: 1)")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs for each engine, on a machine with some. (default: 1)")
    ] = None,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="KV memory of each engine, as 2GiB. (default: 1GiB on a CPU, else vLLM's)"
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=FEWEST_CONTEXT_TOKENS,
            metavar="TOKENS",
            help="The longest prompt plus answer. (default: the model's own, but at most 8192)",
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the table as a picture.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the table as a page of documentation.")
    ] = None,
    engine_python: EnginePython = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")] = False,
) -> None:
    """Measure every serving lever off and on, on this machine and with this model.

    Each lever is tried with traffic that can show it and traffic that cannot. Results are kept as they come:
    after a Ctrl-C the same command goes on where it was.
    """
    effort = QUICK if quick else WHOLE
    cases = chosen(CASES, [name.strip() for name in only.split(",") if name.strip()], effort)
    if list_only:
        _list(cases, as_json)
        return
    if html is not None:
        check_available()
    effort = replace(effort, pairs=pairs or effort.pairs)
    engine = current_engine(engine_python)
    if engine_python is not None:
        # Engines are started by `phasewise up`, which looks here.
        os.environ["PHASEWISE_ENGINE_PYTHON"] = str(engine_python.absolute())
    home = phasewise_home(os.environ)
    size = EngineSize(cores=cores, gpus=gpus, kv_memory=kv_memory, context_tokens=context)
    file = open_results(home, _circumstances(model, home, engine, size, effort, seed), again=again)
    if again:
        file.forget(cases)
    _greet(cases, effort, file)
    allow_many_streams()
    finished = uvloop.run(_measure(cases, effort, file, home))
    _hand_over(cases, file.results, html, markdown, as_json)
    if not finished:
        # With --again it would forget what it has just measured.
        command = "the same command without --again" if again else "the same command"
        err.print(f"stopped; {command} goes on where it was", soft_wrap=True)
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
    # A name as it is, a folder as its whole path: results of folders of one name must not mix.
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
        _say(f"going on with {file.path}: {rows - left} of {rows} rows are measured (--again measures anew)")
    minutes = seconds_left(cases, effort, file.results) / 60
    _say(f"{left} rows to measure, about {max(minutes, 1):.0f} min")


async def _measure(cases: tuple[Case, ...], effort: Effort, file: ResultsFile, home: Path) -> bool:
    """Measure in front of a person; False when a Ctrl-C ended it."""
    interrupts = Interrupts()

    async def measure(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, interrupts)

    outputs = OutputReader(file.results.circumstances.seed)
    tools = Tools(measure, restrained, outputs.compare, read_facts, _say, interrupts.forgives)
    # A service manager's stop or a closed terminal is a Ctrl-C: engines left behind would serve nobody.
    ends = interrupts.handled(SIGTERM, SIGHUP)
    with ends, tempfile.TemporaryDirectory(prefix="phasewise-levers-") as scratch:
        try:
            where = file.results.circumstances
            model_of = model_or_quantised(where.model, home, _say)
            launcher = FleetLauncher(home, Path(scratch), model_of, _shared_gpu_flags(file), where.engine)
            one_by_one = where.device != "cpu"
            async with running_engines(
                launcher.launch, _most_engines(file), _say, one_by_one=one_by_one
            ) as engines:
                await Procedure(cases, effort, file, engines, tools).run()
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
    kv_memory = where.engine.kv_memory
    kv_bytes = DEFAULT_CPU_KV_BYTES if kv_memory is None else byte_size(kv_memory)
    return max(2, min(MOST_ENGINES, int(memory_bytes("MemAvailable") / (ENGINE_MEMORY_BYTES + kv_bytes))))


def _shared_gpu_flags(file: ResultsFile) -> tuple[str, ...]:
    # Both engines of a case are up at once, and each would take nearly all of a GPU.
    on_cpu = file.results.circumstances.device == "cpu"
    return () if on_cpu else ("--gpu-memory-utilization", GPU_SHARE)


def _hand_over(
    cases: tuple[Case, ...], results: Results, html: Path | None, markdown: Path | None, as_json: bool
) -> None:
    """Write and print what was measured, also by earlier runs, in every form that was asked for."""
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
            hint="the results are kept: the same command with another file only writes it",
        ) from error
    err.print(f"wrote {path}", soft_wrap=True)


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)
