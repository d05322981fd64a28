"""`phasewise status`: the fleets on this machine and whether they serve."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated

import typer

from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import RunPaths, fleet_names, read_state
from phasewise.fleet.local.state import FleetState
from phasewise.fleet.local.stop import checked, supervisor_lives
from phasewise.report.console import err, out
from phasewise.report.fleet_view import print_members, state_as_json


def status(
    name: Annotated[str | None, typer.Option(help="Only this fleet. (default: all)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Show the fleets that run here. Exit codes: 0 every process of every fleet serves, 1 otherwise."""
    home = phasewise_home(os.environ)
    names = [name] if name is not None else fleet_names(home)
    recorded = [state for each in names if (state := read_state(RunPaths(home, each))) is not None]
    fleets = asyncio.run(_check_all(recorded))
    if as_json:
        typer.echo(json.dumps({"fleets": [_facts(fleet) for fleet in fleets]}))
    else:
        for fleet in fleets:
            _print(fleet)
        if not fleets:
            err.print(f"no fleet{f' named {name}' if name else ''} runs here; `phasewise up` starts one")
    if not fleets or not all(fleet.all_ready and supervisor_lives(fleet) for fleet in fleets):
        raise typer.Exit(1)


async def _check_all(recorded: list[FleetState]) -> list[FleetState]:
    return list(await asyncio.gather(*map(checked, recorded)))


def _facts(fleet: FleetState) -> dict[str, object]:
    return {**state_as_json(fleet), "supervised": supervisor_lives(fleet)}


def _print(fleet: FleetState) -> None:
    supervision = f"supervised by pid {fleet.supervisor.pid}"
    if fleet.failure is not None:
        supervision = "failed"
    elif not supervisor_lives(fleet):
        supervision = "its supervisor has died: run `phasewise down` to clean up"
    out.print(f"fleet {fleet.name}, {fleet.model}, {supervision}", style="bold", soft_wrap=True)
    if fleet.failure is not None:
        out.print(fleet.failure.message, markup=False, soft_wrap=True)
        if fleet.failure.hint:
            out.print(f"hint: {fleet.failure.hint}", markup=False, soft_wrap=True)
    print_members(fleet)
