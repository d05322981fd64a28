"""The root command: lists the commands, and prints domain errors as `error:` and `hint:` lines."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import typer

from phasewise import __version__
from phasewise.cli.groups import Branch, LazyGroup, Leaf, Panels
from phasewise.core import known_keys
from phasewise.core.errors import PhasewiseError, UsageError
from phasewise.report.console import fail

_CACHE = {
    "stats": Leaf("cache:stats", "Show what the cache served, or would have served, and what it saved."),
    "explain": Leaf("cache:explain", "Show what the cache would do with a question, and why."),
    "purge": Leaf("cache:purge", "Delete stored answers."),
}
_ENGINE = {
    "install": Leaf("engine:install_command", "Install vLLM and the step recorder."),
    "check": Leaf("engine:check_command", "Show which vLLM installation is used, and its versions."),
    "calibrate": Leaf("engine_calibrate:calibrate", "Measure how long an engine's steps take."),
    "validate": Leaf("engine_validate:validate", "Check which published claims hold on this hardware."),
    "fake": Leaf("engine_fake:fake", "Run engines without a model, for tests and demos."),
}
_MODEL = {
    "fetch": Leaf("model:fetch_command", "Download a small model."),
    "list": Leaf("model:list_command", "List the models that phasewise knows by name."),
    "sheet": Leaf(
        "model_sheet:sheet", "Calculate KV cache size, TTFT, TPOT and price of a model on a device."
    ),
}
PANELS: Panels = {
    "Find": {
        "top": Leaf("top:top", "Show whether it is slow to start or slow to stream right now."),
        "diagnose": Leaf(
            "diagnose:diagnose", "Find out whether a model is slow to start or slow to stream, and why."
        ),
        "explain": Leaf("explain:explain", "Show where a request's time went and why, or list requests."),
    },
    "Prove": {
        "bench": Leaf("bench:bench", "Measure TTFT, TPOT, stalls and goodput under load."),
        "compare": Leaf(
            "compare:compare", "Test whether B is faster than A, or whether a fix helps a fleet."
        ),
        "levers": Leaf("model_sheet:levers", "Show which lever helps which phase, modelled."),
    },
    "Plan": {
        "plan": Leaf("plan:plan", "Find the cheapest fleet that meets its objectives."),
        "simulate": Leaf("simulate:simulate", "Simulate a fleet with the gateway's own scheduling."),
    },
    "Serve": {
        "gateway": Leaf("gateway:gateway", "Serve one OpenAI-compatible address in front of engines."),
        "up": Leaf("up:up", "Start engines and a gateway on this machine."),
        "status": Leaf("status:status", "Show the fleets and gateways that you run on this machine."),
        "down": Leaf("status:down", "Stop a fleet and everything it started."),
        "check": Leaf("check:check", "Check whether a fleet's engines can transfer KV to each other."),
        "cache": Branch(_CACHE, "Inspect or purge a gateway's answer cache."),
    },
    "Set up": {
        "engine": Branch(_ENGINE, "Install, check, calibrate, validate or fake a vLLM engine."),
        "model": Branch(_MODEL, "Fetch, list or size a model."),
    },
}
COMMANDS = tuple(name for panel in PANELS.values() for name in panel)


class _Root(LazyGroup):
    def __init__(self, **of_typer: Any) -> None:  # noqa: ANN401 - whatever typer gives a group
        super().__init__(panels=PANELS, **of_typer)

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - of typer's own click, or of click
        params = super().get_params(ctx)
        for each in params:
            if each.is_flag and each.default is None:
                # Typer's completion flags default to None, which pydantic validates, and pydantic is slow to
                # import.
                each.default = False
        return params


app = typer.Typer(
    name="phasewise",
    cls=_Root,
    help="Is your vLLM slow to start or slow to stream? Serve it, measure each phase, find the cause.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    verbose: bool = typer.Option(
        False, "--verbose", help="With --version: also show Python, the data folder and the engine."
    ),
) -> None:
    if version and verbose:
        # Imported here: looking for the engine needs modules that a plain --version does not.
        rows = import_module("phasewise.cli.engine").version_rows()
        for name, value in rows.items():
            typer.echo(f"{name:{max(map(len, rows))}}  {value}")
    elif version:
        typer.echo(f"phasewise {__version__}")
    elif verbose:
        raise typer.BadParameter("it works only together with --version", param_hint="--verbose")
    elif ctx.invoked_subcommand is None:
        ctx.fail("Missing command.")
    if version:
        raise typer.Exit


def engine_key(url: str) -> str | None:
    """The key of the engine at this address, if it runs here; few commands need it, so it is loaded late."""
    from phasewise.fleet.config import phasewise_home  # noqa: PLC0415
    from phasewise.fleet.local.run_files import engine_key_at  # noqa: PLC0415

    return engine_key_at(url, phasewise_home(os.environ))


def main() -> None:
    """Run the command line. Exit code 1 for a domain error, 2 for wrong usage, 130 for Ctrl-C."""
    known_keys.find = engine_key
    try:
        app()
    except PhasewiseError as error:
        fail(error)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
