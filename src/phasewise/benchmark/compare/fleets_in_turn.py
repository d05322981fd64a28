"""Runs at most one fleet at a time, and stops it only when another one is needed.

Blocks alternate as A B, B A, A B: every other block finds its fleet running, which saves half of the starts.
A fleet that was just started is warmed up first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from phasewise.benchmark.compare.arms import Arm
from phasewise.core.errors import FleetError
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.local.placement import Machine, place_engines
from phasewise.fleet.local.run_files import RunPaths, fleet_names, is_supervised, read_state
from phasewise.fleet.local.state import FleetState

MakeArm = Callable[[Path, str], Arm]
WarmUp = Callable[[str], Awaitable[object]]


@dataclass(slots=True)
class FleetsInTurn:
    """Arms of which one runs at a time."""

    make: MakeArm
    warm_up: WarmUp
    _serving: tuple[Path, str] | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def arm(self, path: Path, fleet_name: str, name: str = "") -> Arm:
        """One side of a comparison, started on demand; `name` is its name in reports, else the file's."""
        own = self.make(path, fleet_name)
        return _KeptArm(self, path, own, name or own.name)

    async def serve(self, path: Path, arm: Arm) -> str:
        """The address of a fleet; if it does not run, it is started and the other one stopped."""
        if self._serving is not None and self._serving[0] == path:
            return self._serving[1]
        await self.close()
        url = await self._stack.enter_async_context(arm.serving())
        await self.warm_up(url)
        self._serving = path, url
        return url

    async def close(self) -> None:
        """Stop the running fleet."""
        self._serving = None
        await self._stack.aclose()


@dataclass(frozen=True, slots=True)
class _KeptArm:
    fleets: FleetsInTurn
    path: Path
    own: Arm
    name: str

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        yield await self.fleets.serve(self.path, self.own)


@asynccontextmanager
async def fleets_in_turn(make: MakeArm, warm_up: WarmUp) -> AsyncIterator[FleetsInTurn]:
    """Fleets of which the last one is always stopped at the end."""
    fleets = FleetsInTurn(make, warm_up)
    try:
        yield fleets
    finally:
        await fleets.close()


# --- Rejects a fleet that needs resources of a running one: both would be slowed down.


def running_fleets(home: Path) -> tuple[FleetState, ...]:
    """The supervised fleets of this data folder."""
    every = (RunPaths(home, name) for name in fleet_names(home))
    states = (read_state(paths) for paths in every if is_supervised(paths))
    return tuple(state for state in states if state is not None)


def reject_occupied(fleet: FleetConfig, machine: Machine, running: Sequence[FleetState]) -> None:
    """FleetError for the first running fleet that uses a port, a core or a GPU that this one needs."""
    wanted = set(_wanted(fleet, machine))
    for state in running:
        shared = sorted(wanted & set(_held(state)))
        if shared:
            raise FleetError(
                f"fleet {state.name} is running and uses {', '.join(shared)}, which {fleet.name} needs",
                hint=f"stop it with `phasewise down {state.name}`: two fleets at once would slow each "
                "other down",
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
    # The gateway takes cores that no engine has, and can share them.
    yield from (f"core {core}" for engine in state.engines for core in engine.cores)
