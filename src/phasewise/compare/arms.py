"""The two sides of a comparison: a server that runs already, or a fleet that is started for every block.

What is measured there is left to the runner.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT
from typing import Protocol

import orjson

from phasewise.adapters.address import origin
from phasewise.errors import FleetError

FLEET_FILES = (".yaml", ".yml")


class Arm(Protocol):
    """One side of a comparison."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        ...

    def serving(self) -> AbstractAsyncContextManager[str]:
        """The address to measure, for the length of a block."""
        ...


@dataclass(frozen=True, slots=True)
class UrlArm:
    """A server that somebody else runs."""

    url: str

    @property
    def name(self) -> str:
        """Its address."""
        return self.url

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """It serves already."""
        yield self.url


@dataclass(frozen=True, slots=True)
class FleetArm:
    """A fleet file: its engines and gateway are started before each block and stopped after it.

    Two fleets seldom fit one machine at once, and a fresh start leaves nothing of the last block behind.
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
        """Start the fleet, and stop it afterwards, however the block ended."""
        self.say(f"starting {self.name}")
        started = False
        try:
            state = await run_phasewise("up", str(self.path), "--detach", "--json", "--name", self.fleet_name)
            started = True
            yield orjson.loads(state)["gateway"]["url"]
        finally:
            # Also after an `up` that was interrupted: it may have been done just then, or there is nothing.
            try:
                await _to_its_end(run_phasewise("down", "--name", self.fleet_name))
            except FleetError:
                if started:
                    raise


def arm_of(text: str, side: str, say: Callable[[str], None]) -> Arm:
    """An address or a fleet file, as it was typed; `say` is told what takes long."""
    if text.endswith(FLEET_FILES):
        return FleetArm(Path(text), f"compare-{side.lower()}", say)
    return UrlArm(origin(text))


async def run_phasewise(*arguments: str) -> bytes:
    """Run one of our own commands to its end; what it says of its progress is kept for its failure."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "phasewise.cli",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # A Ctrl-C in the terminal is ours to handle: the fleet is stopped in order.
        start_new_session=True,
    )
    reading = asyncio.ensure_future(process.communicate())
    try:
        out, complaint = await asyncio.shield(reading)
    except asyncio.CancelledError:
        # Nothing half done must stay behind: an interrupted command stops what it has started.
        with suppress(ProcessLookupError):
            process.send_signal(SIGINT)
        await reading
        raise
    if process.returncode != 0:
        raise FleetError(
            f"`phasewise {' '.join(arguments[:2])}` failed: {_last_error(complaint)}",
            hint=f"try it alone: phasewise {' '.join(arguments)}",
        )
    return out


async def _to_its_end(work: Coroutine[None, None, bytes]) -> None:
    """Wait for work that must be done even if we are cancelled meanwhile, once or more often."""
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
    told = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return (told or lines or ["it said nothing"])[-1]
