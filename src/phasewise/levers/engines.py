"""Keeps the engines that cases need: starts each once, two at a time where memory allows, stops them always.

How an engine is started is handed in (launch.py); which is needed when is the procedure's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from phasewise.errors import PhasewiseError
from phasewise.levers.catalogue import EngineSpec


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that answers, and the log in which it says what it uses."""

    spec: EngineSpec
    url: str
    log: str = ""


Launch = Callable[[EngineSpec], AbstractAsyncContextManager[RunningEngine]]
Say = Callable[[str], None]


@dataclass(slots=True)
class _Started:
    engine: RunningEngine
    serving: AbstractAsyncContextManager[RunningEngine]


@dataclass(slots=True)
class Engines:
    """The engines that run now, at most `most`. The first one ever asked for stays up to the end."""

    launch: Launch
    most: int
    say: Say
    _running: dict[str, _Started] = field(default_factory=dict)
    _failed: dict[str, PhasewiseError] = field(default_factory=dict)

    async def need(self, specs: Sequence[EngineSpec], next_specs: Sequence[EngineSpec] = ()) -> None:
        """Have these engines up; while one has to be waited for, those needed next start beside it."""
        wanted = {spec.name: spec.unrestrained for spec in specs}
        missing = [spec for name, spec in wanted.items() if name not in self._running]
        if missing:
            coming = {spec.name: spec.unrestrained for spec in next_specs}
            await self._let_go(keep={*wanted, *coming}, room_for=len(missing))
            room = self.most - len(self._running) - len(missing)
            others = [spec for name, spec in coming.items() if name not in self._running | wanted]
            await self._start([*missing, *others[: max(room, 0)]])
        for name in wanted:
            if name in self._failed:
                raise self._failed[name]

    def engine(self, spec: EngineSpec) -> RunningEngine:
        """An engine that was asked for."""
        return self._running[spec.name].engine

    async def close(self) -> None:
        """Stop every engine, the last one started first."""
        for name in reversed(list(self._running)):
            await self._stop(name)

    async def _let_go(self, keep: set[str], room_for: int) -> None:
        # What nobody asks for soon goes first, the one that all cases share never.
        shared = next(iter(self._running), None)
        for name in [name for name in self._running if name not in keep and name != shared]:
            await self._stop(name)
        surplus = len(self._running) + room_for - self.most
        for name in [name for name in reversed(list(self._running)) if name != shared][: max(surplus, 0)]:
            await self._stop(name)

    async def _start(self, specs: Sequence[EngineSpec]) -> None:
        self.say(f"starting {' and '.join(spec.about for spec in specs)}")
        async with asyncio.TaskGroup() as tasks:
            for spec in specs:
                tasks.create_task(self._start_one(spec))

    async def _start_one(self, spec: EngineSpec) -> None:
        serving = self.launch(spec)
        try:
            engine = await serving.__aenter__()
        except PhasewiseError as error:
            # One that does not start must not stop the others.
            self._failed[spec.name] = error
            return
        self._running[spec.name] = _Started(engine, serving)

    async def _stop(self, name: str) -> None:
        await self._running.pop(name).serving.__aexit__(None, None, None)


@asynccontextmanager
async def running_engines(launch: Launch, most: int, say: Say) -> AsyncIterator[Engines]:
    """Engines that are all stopped in the end, however that comes."""
    engines = Engines(launch, most, say)
    try:
        yield engines
    finally:
        await engines.close()
