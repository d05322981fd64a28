"""Refuses to measure on what a running fleet is using: both would be disturbed, and neither says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from phasewise.config import FleetConfig
from phasewise.errors import FleetError
from phasewise.fleet.fleet_state import FleetState
from phasewise.fleet.placement import Machine, place_engines
from phasewise.fleet.run_file import fleet_names, is_supervised, read_state
from phasewise.fleet.run_paths import RunPaths


def running_fleets(home: Path) -> tuple[FleetState, ...]:
    """The fleets of this home that somebody keeps running."""
    every = (RunPaths(home, name) for name in fleet_names(home))
    states = (read_state(paths) for paths in every if is_supervised(paths))
    return tuple(state for state in states if state is not None)


def refuse_occupied(fleet: FleetConfig, machine: Machine, running: Sequence[FleetState]) -> None:
    """FleetError for the first running fleet that holds a port, a core or a GPU that this one needs."""
    wanted = set(_wanted(fleet, machine))
    for state in running:
        shared = sorted(wanted & set(_held(state)))
        if shared:
            raise FleetError(
                f"fleet {state.name} is running and holds {', '.join(shared)}, which {fleet.name} needs",
                hint=f"stop it with `phasewise down --name {state.name}`: a running fleet is never touched, "
                "and both would be slow",
            )


def _wanted(fleet: FleetConfig, machine: Machine) -> Iterator[str]:
    yield f"port {fleet.gateway.port}"
    for place in place_engines(fleet, machine):
        yield from (f"port {place.port}", f"port {place.steps_port}")
        yield from (f"core {core}" for core in place.cores)
        yield from (f"GPU {gpu}" for gpu in place.gpus)


def _held(state: FleetState) -> Iterator[str]:
    for member in state.members:
        for url in filter(None, (member.url, member.steps_url)):
            yield f"port {urlsplit(url).port}"
        yield from (f"GPU {gpu}" for gpu in member.gpus)
    # The gateway is put on cores that no engine has; an engine there does it no harm.
    yield from (f"core {core}" for engine in state.engines for core in engine.cores)
