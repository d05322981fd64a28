"""`phasewise status`: the fleets and gateways of this user on this machine, and whether they serve."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Annotated

import typer

from phasewise.cli.options import AsJson
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.gateway_run import GatewayState, WorkerReport, living_gateways, lone_gateways
from phasewise.fleet.local.run_files import RunPaths, fleet_names, read_state
from phasewise.fleet.local.state import FleetState, ProcessIdentity
from phasewise.fleet.local.stop import checked, supervisor_lives
from phasewise.report.console import err, out
from phasewise.report.fleet_view import print_gateway, print_members, print_troubled, state_as_json


def status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Only this fleet. (default: all)", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the fleets and gateways that you run here, and the state of every worker.

    Exit codes: 0 every process and every worker serves, 1 otherwise.
    """
    home = phasewise_home(os.environ)
    names = [name] if name is not None else fleet_names(home)
    recorded = [state for each in names if (state := read_state(RunPaths(home, each))) is not None]
    gateways = living_gateways(home)
    lone = lone_gateways(gateways, recorded) if name is None else []
    by_process: dict[ProcessIdentity | None, GatewayState] = {
        gateway.process: gateway for gateway in gateways
    }
    fleets = [
        (fleet, () if (gateway := by_process.get(fleet.gateway.process)) is None else gateway.workers)
        for fleet in asyncio.run(_check_all(recorded))
    ]
    if as_json:
        found = {
            "fleets": [_facts(fleet, of_fleet) for fleet, of_fleet in fleets],
            "gateways": [gateway.model_dump(mode="json") for gateway in lone],
        }
        typer.echo(json.dumps(found))
    else:
        for fleet, of_fleet in fleets:
            _print(fleet)
            print_troubled(of_fleet)
        for gateway in lone:
            print_gateway(gateway)
        if not fleets and not lone:
            what = f"no fleet named {name}" if name else "no fleet and no gateway"
            err.print(f"{what} runs here; `phasewise up` starts a fleet, `phasewise gateway URL` a gateway")
    serve = [fleet.all_ready and supervisor_lives(fleet) for fleet, _ in fleets]
    workers = [worker for _, of_fleet in fleets for worker in of_fleet]
    workers += [worker for gateway in lone for worker in gateway.workers]
    serve += [worker.serves for worker in workers]
    if not (fleets or lone) or not all(serve):
        raise typer.Exit(1)


async def _check_all(recorded: list[FleetState]) -> list[FleetState]:
    return list(await asyncio.gather(*map(checked, recorded)))


def _facts(fleet: FleetState, workers: Sequence[WorkerReport]) -> dict[str, object]:
    seen = [worker.model_dump(mode="json") for worker in workers]
    return {**state_as_json(fleet), "supervised": supervisor_lives(fleet), "workers": seen}


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
