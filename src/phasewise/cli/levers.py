"""`phasewise levers`: which lever helps which phase, on your model; measured, and taught."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer

from phasewise.api.model_sheet import model_sheet
from phasewise.cli import engine_size
from phasewise.cli.help_style import RESULT
from phasewise.cli.levers_measure import measure_levers
from phasewise.cli.levers_tour import take_tour
from phasewise.cli.measuring import command_line
from phasewise.cli.outputs import reject_unwritable
from phasewise.core.errors import ConfigError, UsageError
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.experiments.lever_runs.launch import EngineSize
from phasewise.experiments.levers.agenda import QUICK, WHOLE, chosen, left_to_do, measurable
from phasewise.experiments.levers.cases import CASES
from phasewise.experiments.levers.catalogue import Case
from phasewise.experiments.levers.guide import guide_rows
from phasewise.experiments.levers.modelled import MODELLED_ON, typical_deployment
from phasewise.experiments.levers.results import Results, known_results
from phasewise.fleet.config import DEMO_MODEL, phasewise_home
from phasewise.fleet.engines.demo_model import DEMO_MODELS
from phasewise.fleet.engines.model_config_file import CONFIG_FILE
from phasewise.loadgen.statistics.comparison import FEWEST_PAIRS
from phasewise.report.console import err, out
from phasewise.report.levers.facts import as_facts, as_listing, guide_facts
from phasewise.report.levers.guide import guide_markdown, render_guide
from phasewise.report.levers.markdown import render_markdown
from phasewise.report.levers.page import render_page
from phasewise.report.levers.table import render, render_list

WHICH = "Measurements"
USUAL_GPU = "H100"


def levers(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="With --tour: http://host:port of an idle engine or gateway, or a running fleet's file. "
            "(default: the gateway that runs here)",
            show_default=False,
        ),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="A config.json, a folder, a known name or a Hugging Face id. (default: an 8B model; "
            f"to measure, {DEMO_MODEL})"
        ),
    ] = None,
    gpu: Annotated[str, typer.Option(help=f"The device to model: {', '.join(ACCELERATORS)}.")] = USUAL_GPU,
    tour: Annotated[
        bool,
        typer.Option(
            "--tour",
            help="Play five runs on an idle engine, each with its prediction first. --html draws them.",
        ),
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="PHASEWISE_API_KEY", help="API key for the requests of --tour.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Start engines and measure every lever.", rich_help_panel=WHICH),
    ] = False,
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
    """Show which lever helps which phase and why: modelled on your model, and measured on this machine.

    Without --measure no engine is needed. With it each lever is measured off and on, with traffic that it
    should affect and traffic that it should not. Results are saved as they come: after Ctrl-C, the same
    command continues.
    """
    if tour:
        reject_unwritable("--html", html)
        take_tour(target, model, api_key, seed, html)
        return
    if target is not None:
        raise UsageError(f"{target} is a target, which only --tour has", hint="add --tour")
    effort = QUICK if quick else WHOLE
    cases = chosen(CASES, [name.strip() for name in only.split(",") if name.strip()], effort)
    if list_only:
        _list(cases, as_json)
        return
    size = EngineSize(
        cores=cores, gpus=gpus, kv_cache_memory_bytes=kv_cache_memory_bytes, context_tokens=context
    )
    if not measure:
        if only or quick or again or pairs is not None or size != EngineSize(gpus=gpus):
            raise UsageError("these options are for measurements", hint="add --measure")
        _show(model, gpu, gpus or 1, markdown, as_json)
        return
    effort = replace(effort, pairs=pairs or effort.pairs)
    engine = engine_size.engine_to_start(engine_python)
    results, finished = measure_levers(
        cases, effort, model or DEMO_MODEL, engine, size, seed=seed, again=again
    )
    _write_results(cases, results, html, markdown, as_json)
    if not finished:
        # With --again it would repeat what it has just measured.
        command = "the same command without --again" if again else "the same command"
        err.print(f"stopped; {command} continues from here", soft_wrap=True)
        raise typer.Exit(130)
    if any(left_to_do(case, results) for case in measurable(cases, results)):
        raise typer.Exit(1)


def _list(cases: tuple[Case, ...], as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(as_listing(cases), option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render_list(cases))


def _show(model: str | None, gpu: str, gpus: int, markdown: Path | None, as_json: bool) -> None:
    """Print the table, which needs no engine."""
    deployment, name = _deployment(model, gpu, gpus)
    results = known_results(phasewise_home(os.environ), _identity(model or DEMO_MODEL))
    rows = guide_rows(deployment, results)
    if markdown is not None:
        _write(markdown, guide_markdown(rows, name, results, command_line()))
    if as_json:
        typer.echo(orjson.dumps(guide_facts(rows, name), option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render_guide(rows, name, results))


def _deployment(model: str | None, gpu: str, gpus: int) -> tuple[Deployment, str]:
    """The model on the device, and both in words."""
    if model is None and (gpu, gpus) == (USUAL_GPU, 1):
        return typical_deployment(), MODELLED_ON
    if model is None:
        raise UsageError("--gpu and --gpus need a model", hint="add --model CONFIG")
    asked = model_sheet(model, gpu=gpu, gpus=gpus).asked
    fits = "" if asked.deployment.fits else ", whose memory is too small for it: try more --gpus"
    return asked.deployment, f"{asked.name} on {gpus} x {gpu}{fits}"


def _identity(model: str) -> str:
    """What results are recorded under: a known name, or a folder's full path."""
    folder = Path(model).expanduser()
    folder = folder.parent if folder.name == CONFIG_FILE else folder
    return str(folder.absolute()) if model not in DEMO_MODELS and folder.is_dir() else model


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
