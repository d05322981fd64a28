"""`phasewise down`: stop a fleet, whether or not its supervisor still runs."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated

import typer

from phasewise.cli.options import AsJson
from phasewise.core.errors import FleetError
from phasewise.core.units import duration
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import RunPaths, fleet_names, read_state
from phasewise.fleet.local.state import FleetState, ProcessStage
from phasewise.fleet.local.stop import stop_fleet
from phasewise.report.console import err, out
from phasewise.report.fleet_view import stage_words


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
    stop_fleet(RunPaths(home, state.name), state, _DrainNotice().show)
    took_s = time.monotonic() - began_s
    if as_json:
        typer.echo(json.dumps({"name": state.name, "stopped": True, "took_s": round(took_s, 1)}))
    else:
        out.print(f"fleet {state.name} is stopped ({duration(took_s)})")


class _DrainNotice:
    """Says once that running streams are finished first, and how to skip that."""

    def __init__(self) -> None:
        self._said = False

    def show(self, state: FleetState) -> None:
        """Take a new state of the fleet."""
        if state.gateway.stage is ProcessStage.DRAINING and not self._said:
            self._said = True
            words = f"gateway: {stage_words(state.gateway)}; a second `phasewise down` does not wait"
            err.print(words, markup=False, soft_wrap=True)


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
