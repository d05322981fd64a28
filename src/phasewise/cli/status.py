"""`phasewise status` and `phasewise down`: show the fleets and gateways that run here, or stop a fleet."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from phasewise.cli.options import AsJson, print_json
from phasewise.core.errors import FleetError
from phasewise.core.units import duration
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.gateway_run import WorkerReport, living_gateways, lone_gateways
from phasewise.fleet.local.run_files import RunPaths, fleet_names, read_state
from phasewise.fleet.local.state import FleetState, ProcessStage
from phasewise.fleet.local.stop import checked, stop_fleet, supervisor_lives
from phasewise.report.console import err, out
from phasewise.report.fleet_view import (
    print_gateway,
    print_members,
    print_troubled,
    stage_words,
    state_as_json,
)


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
    workers_of = {gateway.process: gateway.workers for gateway in gateways}
    fleets = [
        (fleet, workers_of.get(process, ()) if (process := fleet.gateway.process) is not None else ())
        for fleet in asyncio.run(_check_all(recorded))
    ]
    if as_json:
        found = {
            "fleets": [_facts(fleet, of_fleet) for fleet, of_fleet in fleets],
            "gateways": [gateway.model_dump(mode="json") for gateway in lone],
        }
        print_json(found)
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


def down(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The fleet's name. Required when several run.", show_default=False
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Stop a fleet and everything it started. Exit code 1 when none runs."""
    home = phasewise_home(os.environ)
    state = _chosen([RunPaths(home, each) for each in ([name] if name else fleet_names(home))], name)
    began_s = time.monotonic()
    announced = False

    def announce_draining(seen: FleetState) -> None:
        nonlocal announced
        if seen.gateway.stage is ProcessStage.DRAINING and not announced:
            announced = True
            words = f"gateway: {stage_words(seen.gateway)}; a second `phasewise down` does not wait"
            err.print(words, markup=False, soft_wrap=True)

    stop_fleet(RunPaths(home, state.name), state, announce_draining)
    took_s = time.monotonic() - began_s
    if as_json:
        print_json({"name": state.name, "stopped": True, "took_s": round(took_s, 1)})
    else:
        out.print(f"fleet {state.name} is stopped ({duration(took_s)})")


def _chosen(candidates: list[RunPaths], name: str | None) -> FleetState:
    states = [state for paths in candidates if (state := read_state(paths)) is not None]
    if not states:
        raise FleetError(
            f"no fleet{f' named {name}' if name else ''} runs here",
            hint="list what runs with `phasewise status`",
        )
    if len(states) > 1:
        names = ", ".join(state.name for state in states)
        raise FleetError(
            f"several fleets run here: {names}", hint=f"choose one: `phasewise down {states[0].name}`"
        )
    return states[0]
