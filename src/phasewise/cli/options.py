"""The options that more than one command has, and the help panels that they stand in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phasewise.cli import help_style
from phasewise.clients.key_file import key_or_its_file
from phasewise.core.errors import UsageError

WHEN = "Load"
WHAT = "Requests"
SERVER = "Server"
RESULT = help_style.RESULT
DIAGNOSIS = "Diagnosis"
SEVERAL = "Several runs"

Model = Annotated[
    str | None,
    typer.Option(help="The model of the requests. (default: the first one served)", rich_help_panel=SERVER),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="PHASEWISE_API_KEY",
        help="API key, sent as a bearer token.",
        show_envvar=True,
        rich_help_panel=SERVER,
    ),
]
SloText = Annotated[
    str,
    typer.Option("--slo", help="Latency objectives, such as ttft=500ms,tpot=50ms.", rich_help_panel=RESULT),
]
Timeout = Annotated[float, typer.Option(help="Timeout of one request, in seconds.", rich_help_panel=SERVER)]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object.", rich_help_panel=RESULT)
]
HtmlPage = Annotated[
    Path | None,
    typer.Option(
        "--html",
        help="Write an HTML page with charts to this file; it opens offline.",
        rich_help_panel=RESULT,
    ),
]


# --- The options of a diagnosis that more than one command has.


AdminKey = Annotated[
    str | None,
    typer.Option(
        "--admin-key",
        envvar="PHASEWISE_ADMIN_KEY",
        callback=key_or_its_file,
        help="The gateway's admin key, or @FILE. (default: found for a gateway on this machine)",
        rich_help_panel=SERVER,
    ),
]
StepsUrl = Annotated[
    str | None,
    typer.Option(
        help="Address of the engine's step recorder. (default: the engine's port + 10000)",
        rich_help_panel=SERVER,
    ),
]
Costs = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="Step costs, as saved by `phasewise engine calibrate URL --save FILE`. "
        "(default: fitted to the window's own steps)",
        rich_help_panel=DIAGNOSIS,
    ),
]


def typed_options(ctx: typer.Context) -> set[str]:
    """The options and arguments that were given on the command line."""
    sources = {param.opts[0]: ctx.get_parameter_source(param.name or "") for param in ctx.command.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def reject_typed_beside(ctx: typer.Context, option: str, allowed: set[str]) -> None:
    """UsageError for options that would be ignored."""
    if ignored := sorted(typed_options(ctx) - allowed - {option}):
        raise UsageError(
            f"{option} was given together with {', '.join(ignored)}", hint=f"remove what {option} ignores"
        )
