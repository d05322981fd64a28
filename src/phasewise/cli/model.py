"""`phasewise model`: fetch a small model that needs no model hub, list the known ones, quantise one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from phasewise.adapters.embedding_folder import EMBEDDING_MODELS, EmbeddingModel, embedding_folder, is_whole
from phasewise.cli.console import out
from phasewise.cli.engine import AsJson, EnginePython, current_engine
from phasewise.cli.model_sheet import sheet
from phasewise.cli.stage_lines import StageLines
from phasewise.config import phasewise_home
from phasewise.errors import ConfigError
from phasewise.fleet.demo_model import DEMO_MODELS, DemoModel, fetch_model, is_fetched, model_folder
from phasewise.fleet.embedding_model import fetch_embedding_model
from phasewise.fleet.paths import logs_folder
from phasewise.fleet.quantised_model import SCHEMES, is_quantised, quantise_model, quantised_folder

app = typer.Typer(
    help="Fetch a small demo model, list the known ones, quantise one, or work out what one costs.",
    no_args_is_help=True,
)
app.command("sheet")(sheet)


@app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="A known name, see `phasewise model list`.")] = "smollm2-135m",
    again: Annotated[bool, typer.Option("--again", help="Fetch it even if it is there.")] = False,
    engine_python: EnginePython = None,
    as_json: AsJson = False,
) -> None:
    """Download a known model. One that writes is converted in the engine's environment and tried.

    Embedding models need no engine: the gateway runs them itself.
    """
    home = phasewise_home(os.environ)
    started_s = time.monotonic()
    folder, there = _known(name, home)
    changed = again or not there
    if changed:
        _fetch(name, home, engine_python)
    if as_json:
        took_s = round(time.monotonic() - started_s, 1)
        typer.echo(json.dumps({"model": name, "path": str(folder), "changed": changed, "took_s": took_s}))
    else:
        out.print(f"{name} {'is ready' if changed else 'was there already'}: {folder}", soft_wrap=True)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the models known by name and whether they are on this machine."""
    home = phasewise_home(os.environ)
    known: dict[str, DemoModel | EmbeddingModel] = {**DEMO_MODELS, **EMBEDDING_MODELS}
    found = {alias: _known(alias, home) for alias in known}
    if as_json:
        models = [
            {
                "model": alias,
                "title": model.title,
                "license": model.license,
                "for": "embedding" if alias in EMBEDDING_MODELS else "serving",
                "path": str(found[alias][0]) if found[alias][1] else None,
            }
            for alias, model in known.items()
        ]
        typer.echo(json.dumps({"models": models}))
        return
    for alias, model in known.items():
        folder, there = found[alias]
        state = folder if there else f"not fetched: run `phasewise model fetch {alias}`"
        out.print(f"{alias}  {model.title} ({model.license})  {state}", markup=False, soft_wrap=True)


@app.command("quantise")
def quantise_command(
    scheme: Annotated[
        str, typer.Option(metavar="|".join(SCHEMES), help="How many bits for weights and activations.")
    ],
    model: Annotated[
        str, typer.Argument(help="A known name, or the folder of a model in 16 or 32 bits.")
    ] = "smollm2-135m",
    again: Annotated[bool, typer.Option("--again", help="Make it even if it is there.")] = False,
    engine_python: EnginePython = None,
    as_json: AsJson = False,
) -> None:
    """Write a model with fewer bits per weight, rounded to nearest, as a folder that vLLM loads.

    What that does to the answers depends on the model: compare before you serve it.
    """
    if scheme not in SCHEMES:
        known = "; ".join(f"{each.name}: {each.about}" for each in SCHEMES.values())
        raise ConfigError(f"there is no scheme {scheme!r}", hint=known)
    home = phasewise_home(os.environ)
    started_s = time.monotonic()
    changed = again or not is_quantised(model, scheme, home)
    if changed:
        engine = current_engine(engine_python)
        with StageLines() as progress:
            quantise_model(
                model, scheme, home, engine.python, logs_folder(home) / "model-quantise.log", progress
            )
    folder = quantised_folder(model, scheme, home)
    if as_json:
        facts = {"model": model, "scheme": scheme, "path": str(folder), "changed": changed}
        typer.echo(json.dumps(facts | {"took_s": round(time.monotonic() - started_s, 1)}))
    else:
        out.print(f"{model} as {scheme} {'is ready' if changed else 'was there already'}. In a fleet file:")
        out.print(f"model: {folder}", soft_wrap=True, markup=False)


def _fetch(name: str, home: Path, engine_python: Path | None) -> None:
    log = logs_folder(home) / "model-fetch.log"
    engine = current_engine(engine_python) if name in DEMO_MODELS else None
    with StageLines() as progress:
        if engine is None:
            fetch_embedding_model(EMBEDDING_MODELS[name], home, log, progress)
        else:
            fetch_model(DEMO_MODELS[name], home, engine.python, log, progress)


def _known(name: str, home: Path) -> tuple[Path, bool]:
    """A known model's folder, and whether the model is there."""
    if name in DEMO_MODELS:
        return model_folder(name, home), is_fetched(name, home)
    if name in EMBEDDING_MODELS:
        return embedding_folder(name, home), is_whole(name, home)
    raise ConfigError(
        f"no model is known by the name {name!r}",
        hint=f"known: {', '.join((*DEMO_MODELS, *EMBEDDING_MODELS))}; "
        "any other model is given as a folder or a hub id",
    )
