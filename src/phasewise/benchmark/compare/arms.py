"""The two sides of a comparison: servers that already run, or fleets that are started for every block.

At most one fleet runs at a time. In `FleetsInTurn` it is stopped only when another one is needed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT
from typing import Protocol
from urllib.parse import urlsplit

import orjson

from phasewise.clients.http_client import is_address, origin
from phasewise.core.errors import FleetError, UsageError
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.local.placement import Machine, place_engines
from phasewise.fleet.local.run_files import RunPaths, fleet_names, is_supervised, read_state
from phasewise.fleet.local.state import FleetState

FLEET_FILES = (".yaml", ".yml")


class Arm(Protocol):
    """One side of a comparison."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        ...

    def serving(self) -> AbstractAsyncContextManager[str]:
        """The address to measure, for the duration of a block."""
        ...


@dataclass(frozen=True, slots=True)
class UrlArm:
    """A server that the user runs."""

    url: str

    @property
    def name(self) -> str:
        """Its address."""
        return self.url

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Yield its address."""
        yield self.url


@dataclass(frozen=True, slots=True)
class FleetArm:
    """A fleet file: its engines and gateway are started before each block and stopped after it.

    Two fleets rarely fit one machine at once, and a fresh start keeps no state of the last block.
    """

    path: Path
    fleet_name: str
    say: Callable[[str], None] = field(default=lambda words: None, compare=False)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Start the fleet, and always stop it after the block."""
        self.say(f"starting {self.name}")
        started = False
        try:
            state = await run_phasewise("up", str(self.path), "--detach", "--json", "--name", self.fleet_name)
            started = True
            yield orjson.loads(state)["gateway"]["url"]
        finally:
            # Also after an interrupted `up`, which may have finished starting.
            try:
                await _to_its_end(run_phasewise("down", self.fleet_name))
            except FleetError:
                if started:
                    raise


def arms_of(a: str, b: str, say: Callable[[str], None] = lambda words: None) -> tuple[Arm, Arm]:
    """Two addresses or two fleet files, as the user typed them; `say` gets messages about long operations.

    One of each is rejected: a fleet is started fresh for every block, and a server that already runs is not.
    """
    files = [text for text in (a, b) if text.endswith(FLEET_FILES)]
    for text in (a, b):
        if text not in files and not is_address(text):
            raise UsageError(
                f"{text!r} is neither an address nor a fleet file",
                hint="give http://host:port, or a file that ends in .yaml",
            )
    if len(files) == 1:
        raise UsageError(
            f"{a} and {b} are an address and a fleet file, which start a block in different states",
            hint=f"start the fleet with `phasewise up {files[0]} --detach` and give its gateway's "
            "address, or give two fleet files",
        )
    if files:
        return FleetArm(Path(a), "compare-a", say), FleetArm(Path(b), "compare-b", say)
    return UrlArm(origin(a)), UrlArm(origin(b))


async def run_phasewise(*arguments: str) -> bytes:
    """Run one of our own commands to its end; its stderr is kept for the error message."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "phasewise.cli",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # We handle a Ctrl-C of the terminal: the fleet is stopped in order.
            start_new_session=True,
        )
    )
    try:
        # asyncio would kill a command that is cancelled while it starts, and leave what that has started.
        process = await asyncio.shield(starting)
        reading = asyncio.ensure_future(process.communicate())
        out, complaint = await asyncio.shield(reading)
    except asyncio.CancelledError:
        process = await starting
        # An interrupted command stops what it has started, so that nothing is left running.
        with suppress(ProcessLookupError):
            process.send_signal(SIGINT)
        await process.wait()
        raise
    if process.returncode != 0:
        raise FleetError(
            f"`phasewise {' '.join(arguments[:2])}` failed: {_last_error(complaint)}",
            hint=f"run it alone to see more: phasewise {' '.join(arguments)}",
        )
    return out


async def _to_its_end(work: Coroutine[None, None, bytes]) -> None:
    """Wait for work that must finish even if we are cancelled, once or more often."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except FleetError:
            break
    if cancelled:
        raise asyncio.CancelledError
    task.result()


def _last_error(complaint: bytes) -> str:
    lines = [line for line in complaint.decode(errors="replace").splitlines() if line.strip()]
    reported = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return (reported or lines or ["it printed nothing"])[-1]


# --- Runs at most one fleet at a time, and stops it only when another one is needed.
#
# Blocks alternate as A B, B A, A B: every other one finds its fleet running, which saves half of the starts.
# A fleet that was just started is warmed up first.

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
