"""The options of a diagnosis that more than one command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phasewise.cli import workload_options
from phasewise.errors import ConfigError

VERIFYING = "Verifying"
"""The panel of options that mean something with --verify alone."""

AdminKey = Annotated[
    str | None,
    typer.Option(
        "--admin-key",
        envvar="PHASEWISE_ADMIN_KEY",
        help="A gateway's admin key; that of one started here is found.",
    ),
]
Costs = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="What steps cost here, as `phasewise calibrate URL --save FILE` wrote it. (default: learned "
        "from the window's own steps)",
    ),
]

_LOAD_PANELS = {VERIFYING, workload_options.WHAT, workload_options.WHEN, workload_options.SERVER}


def refuse_what_has_no_effect(ctx: typer.Context, *, verify: bool) -> None:
    """ConfigError for options that were typed and would be ignored: whoever typed them believes otherwise."""
    typed = [each for each in ctx.command.params if _was_typed(ctx, each.name)]
    if verify:
        watching = [each.opts[0] for each in typed if each.name in {"steps_url", "window"}]
        if watching:
            raise ConfigError(
                f"--verify was given together with {', '.join(watching)}",
                hint="leave it out: --verify starts a fleet and puts the load on it that it watches",
            )
        return
    loading = [
        each.opts[0]
        for each in typed
        if getattr(each, "rich_help_panel", None) in _LOAD_PANELS or each.name == "ledger_file"
    ]
    if loading:
        raise ConfigError(
            f"{', '.join(loading)} was given, and nothing is sent or written down without --verify",
            hint="add --verify with a fleet file, or run `phasewise bench URL --diagnose` with that load",
        )


def _was_typed(ctx: typer.Context, name: str | None) -> bool:
    source = ctx.get_parameter_source(name or "")
    return source is not None and source.name == "COMMANDLINE"
