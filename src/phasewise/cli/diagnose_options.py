"""The options of a diagnosis that more than one command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
