"""`phasewise model`: fetch a small model that needs no model hub, list the known ones, quantise one."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated

import typer

from phasewise.cli.console import out
from phasewise.cli.engine import AsJson, EnginePython, current_engine
from phasewise.cli.model_sheet import sheet
from phasewise.cli.stage_lines import StageLines
from phasewise.config import phasewise_home
from phasewise.errors import ConfigError
from phasewise.fleet.demo_model import DEMO_MODELS, DemoModel, fetch_model, is_fetched, model_folder
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
    """Download a known model, convert it in the engine's environment and try it."""
    model = _known(name)
    home = phasewise_home(os.environ)
    started_s = time.monotonic()
    changed = again or not is_fetched(name, home)
    if changed:
        engine = current_engine(engine_python)
        with StageLines() as progress:
            fetch_model(model, home, engine.python, logs_folder(home) / "model-fetch.log", progress)
    folder = model_folder(name, home)
    if as_json:
        took_s = round(time.monotonic() - started_s, 1)
        typer.echo(json.dumps({"model": name, "path": str(folder), "changed": changed, "took_s": took_s}))
    else:
        out.print(f"{name} {'is ready' if changed else 'was there already'}: {folder}", soft_wrap=True)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the models known by name and whether they are on this machine."""
    home = phasewise_home(os.environ)
    paths = {
        alias: str(model_folder(alias, home)) if is_fetched(alias, home) else None for alias in DEMO_MODELS
    }
    if as_json:
        models = [
            {"model": alias, "title": model.title, "license": model.license, "path": paths[alias]}
            for alias, model in DEMO_MODELS.items()
        ]
        typer.echo(json.dumps({"models": models}))
        return
    for alias, model in DEMO_MODELS.items():
        state = paths[alias] or f"not fetched: run `phasewise model fetch {alias}`"
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


def _known(name: str) -> DemoModel:
    if name not in DEMO_MODELS:
        raise ConfigError(
            f"no model is known by the name {name!r}",
            hint=f"known: {', '.join(DEMO_MODELS)}; any other model is given as a folder or a hub id",
        )
    return DEMO_MODELS[name]
