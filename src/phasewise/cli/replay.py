"""`phasewise replay`: do the decisions that a gateway recorded come out again?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from phasewise.core.errors import ConfigError
from phasewise.core.units import counted
from phasewise.report.console import out
from phasewise.simulator.replay import ReplayResult
from phasewise.simulator.replay import replay as replay_lines


def replay(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What `gateway.record_decisions` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Replay a gateway's record through its own scheduler, and compare every decision.

    Exit codes: 0 all are identical, 1 one differs.
    """
    try:
        with path.open("rb") as lines:
            result = replay_lines(lines)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", hint="check the path") from error
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    else:
        out.print("\n".join(_sentences(result)), markup=False, soft_wrap=True)
    if result.difference is not None:
        raise typer.Exit(1)


def _sentences(result: ReplayResult) -> list[str]:
    said = [
        f"{result.identical} of {counted(result.decisions, 'decision')} identical: "
        f"{counted(result.requests, 'request')}, {result.rejected} rejected, "
        f"{counted(result.grants, 'grant')} of slots, {counted(result.failures, 'failed attempt')}"
    ]
    if not result.complete:
        said.append("The record ends before the gateway stopped.")
    if (it := result.difference) is not None:
        said.append(f"The first difference, line {it.line}, at {it.where}")
        said += [f"  recorded: {it.recorded}", f"  replayed: {it.replayed}"]
    return said
