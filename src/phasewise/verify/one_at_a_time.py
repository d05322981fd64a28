"""Keeps at most one fleet up, and stops it only when another is asked for.

Blocks come A B, B A, A B: every other one finds its fleet running, which saves half of the starts. A fleet
that was just started is warmed up first, so that none is measured cold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from phasewise.compare.arms import Arm

MakeArm = Callable[[Path, str], Arm]
WarmUp = Callable[[str], Awaitable[object]]


@dataclass(slots=True)
class FleetsInTurn:
    """Arms of which one serves at a time."""

    make: MakeArm
    warm_up: WarmUp
    _serving: tuple[Path, str] | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def arm(self, path: Path, name: str) -> Arm:
        """A side of a comparison that is started when its turn comes."""
        return _KeptArm(self, path, self.make(path, name))

    async def serve(self, path: Path, arm: Arm) -> str:
        """The address of a fleet, which is started, and the other one stopped, if it does not run."""
        if self._serving is not None and self._serving[0] == path:
            return self._serving[1]
        await self.close()
        url = await self._stack.enter_async_context(arm.serving())
        await self.warm_up(url)
        self._serving = path, url
        return url

    async def close(self) -> None:
        """Stop what runs."""
        self._serving = None
        await self._stack.aclose()


@dataclass(frozen=True, slots=True)
class _KeptArm:
    fleets: FleetsInTurn
    path: Path
    own: Arm

    @property
    def name(self) -> str:
        return self.own.name

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        yield await self.fleets.serve(self.path, self.own)


@asynccontextmanager
async def fleets_in_turn(make: MakeArm, warm_up: WarmUp) -> AsyncIterator[FleetsInTurn]:
    """Fleets of which the last one is stopped at the end, however that comes."""
    fleets = FleetsInTurn(make, warm_up)
    try:
        yield fleets
    finally:
        await fleets.close()
