"""`phasewise engine`: install an engine environment, or show which one is used."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from phasewise import __version__
from phasewise.cli.options import AsJson, print_json
from phasewise.core.errors import EngineNotInstalled, PhasewiseError
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.engines.environment import (
    EngineEnvironment,
    engine_candidates,
    find_engine,
    inspect_engine,
)
from phasewise.fleet.engines.install import (
    Installation,
    bundled_plugin_version,
    detect_device,
    install,
    install_plugin,
)
from phasewise.fleet.engines.known_models import DEMO_MODELS, is_fetched, model_folder
from phasewise.fleet.engines.recipe import VERSIONS
from phasewise.fleet.local.run_files import engine_folder, logs_folder
from phasewise.report.console import StageLines, err, out

ENGINE_PYTHON_HELP = "The Python of an existing vLLM installation. Also PHASEWISE_ENGINE_PYTHON."
EnginePython = Annotated[
    Path | None, typer.Option("--engine-python", metavar="PATH", help=ENGINE_PYTHON_HELP)
]


def current_engine(engine_python: Path | None = None) -> EngineEnvironment:
    """The engine that every command uses; `phasewise engine check --help` lists the order."""
    home = phasewise_home(os.environ)
    return find_engine(engine_candidates(engine_python, os.environ, home, Path(sys.executable)))


def install_command(
    path: Annotated[
        Path | None, typer.Option(help="Folder of the environment. (default: engine/ in the data folder)")
    ] = None,
    cuda: Annotated[
        bool | None,
        typer.Option(
            "--cuda/--cpu", help="Build for NVIDIA GPUs or for the CPU. (default: what this machine has)"
        ),
    ] = None,
    reinstall: Annotated[bool, typer.Option("--reinstall", help="Start from an empty environment.")] = False,
    plugin_only: Annotated[
        bool,
        typer.Option("--plugin-only", help="Only add the step recorder to the existing vLLM."),
    ] = False,
    engine_python: EnginePython = None,
    as_json: AsJson = False,
) -> None:
    """Install vLLM and the step recorder. Can be run again: steps that are done are skipped.

    A vLLM that is found elsewhere is used unchanged, unless --path or --reinstall is given.
    """
    started_s = time.monotonic()
    log = logs_folder(phasewise_home(os.environ)) / "engine-install.log"
    if plugin_only:
        found, changed = current_engine(engine_python).python, True
        with StageLines() as progress:
            install_plugin(found, log, progress)
        environment = current_engine(found)
    elif path is None and not reinstall and (existing := _engine_of_others(engine_python)) is not None:
        environment, changed = existing, False
    else:
        environment, changed = _install_own(path, cuda, reinstall, log)
    if as_json:
        took_s = round(time.monotonic() - started_s, 1)
        print_json(_facts(environment) | {"changed": changed, "took_s": took_s})
    elif environment.origin:
        _explain_foreign(environment)
    else:
        state = "is installed" if changed else "was already complete"
        out.print(f"vLLM {environment.vllm_version} for {environment.device} {state}: {environment.python}")


def _install_own(
    path: Path | None, cuda: bool | None, reinstall: bool, log: Path
) -> tuple[EngineEnvironment, bool]:
    device = detect_device() if cuda is None else ("cuda" if cuda else "cpu")
    folder = (path or engine_folder(phasewise_home(os.environ))).expanduser().absolute()
    err.print(f"vLLM {VERSIONS['vllm']} for {device} into {folder}", soft_wrap=True)
    installation = Installation(folder, device, log)
    with StageLines() as progress:
        changed = install(installation, progress, reinstall=reinstall)
    environment = inspect_engine(installation.python)
    if environment is None:
        raise EngineNotInstalled(f"{installation.python} has no vLLM", hint="run again with --reinstall")
    return environment, changed


def _engine_of_others(engine_python: Path | None) -> EngineEnvironment | None:
    own = engine_folder(phasewise_home(os.environ))
    try:
        environment = current_engine(engine_python)
    except EngineNotInstalled:
        return None
    return None if environment.python.is_relative_to(own) else environment


def _explain_foreign(environment: EngineEnvironment) -> None:
    out.print(
        f"vLLM {environment.vllm_version} is used unchanged: {environment.python} ({environment.origin})",
        soft_wrap=True,
    )
    if environment.plugin_version is None:
        out.print(
            "It has no step recorder. Add it with `phasewise engine install --plugin-only`.", soft_wrap=True
        )


def check_command(engine_python: EnginePython = None, as_json: AsJson = False) -> None:
    """Show which engine environment is used and its versions. Exit code 1 if there is none.

    Searched in this order: --engine-python, PHASEWISE_ENGINE_PYTHON, the environment made by
    `engine install`, the Python that runs phasewise, `vllm` on PATH.
    """
    try:
        environment = current_engine(engine_python)
    except EngineNotInstalled as error:
        if not as_json:
            raise
        print_json({"found": False, "error": error.message, "hint": error.hint})
        raise typer.Exit(1) from None
    facts = _facts(environment)
    if as_json:
        print_json({"found": True} | facts)
        return
    bundled = bundled_plugin_version()
    rows = {
        "python": f"{environment.python} ({environment.origin})",
        "vLLM": environment.vllm_version,
        "device": environment.device,
        "step recorder": _recorder_state(environment.plugin_version, bundled),
        "NIXL": "yes" if environment.nixl else "no: engines cannot transfer KV",
        **{
            f"model {alias}": found or f"no: run `phasewise model fetch {alias}`"
            for alias, found in _models().items()
        },
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        out.print(f"{name:{width}}  {value}", markup=False, soft_wrap=True)


def _recorder_state(installed: str | None, bundled: str) -> str:
    if installed is None:
        return "no: steps are not recorded; run `phasewise engine install --plugin-only`"
    if installed != bundled:
        return f"{installed}, this phasewise has {bundled}; run `phasewise engine install --plugin-only`"
    return installed


def _models() -> dict[str, str | None]:
    home = phasewise_home(os.environ)
    return {
        alias: str(model_folder(alias, home)) if is_fetched(alias, home) else None for alias in DEMO_MODELS
    }


def _facts(environment: EngineEnvironment) -> dict[str, Any]:
    facts = asdict(environment)
    return facts | {
        "python": str(environment.python),
        "bundled_plugin": bundled_plugin_version(),
        "models": _models(),
    }


NOT_INSTALLED = "not installed: phasewise engine install"
NO_RECORDER = "not installed: phasewise engine install --plugin-only"


def version_rows() -> dict[str, str]:
    """Each part's version, or how to install it."""
    try:
        engine = current_engine()
        vllm, recorder = engine.vllm_version, engine.plugin_version or NO_RECORDER
    except PhasewiseError:
        vllm = recorder = NOT_INSTALLED
    return {
        "phasewise": __version__,
        "Python": f"{platform.python_version()} ({sys.executable})",
        "data folder": str(phasewise_home(os.environ)),
        "vLLM": vllm,
        "step recorder": recorder,
    }
