"""Keeps the engines that cases need: starts each once, in parallel where possible, and always stops them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from phasewise.core.errors import PhasewiseError
from phasewise.experiments.levers.catalogue import EngineSpec


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that answers, and its log."""

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
    """The running engines, at most `most`. The first one ever requested stays up to the end.

    Engines that share a GPU start `one_by_one`: an engine measures free memory while it starts, and would
    count what another one is just allocating as its own.
    """

    launch: Launch
    most: int
    say: Say
    one_by_one: bool = False
    _shared: str | None = None
    _running: dict[str, _Started] = field(default_factory=dict)
    _failed: dict[str, PhasewiseError] = field(default_factory=dict)

    async def need(self, specs: Sequence[EngineSpec], next_specs: Sequence[EngineSpec] = ()) -> None:
        """Have these engines up; while one is starting, those needed next start beside it."""
        wanted = {spec.name: spec.without_handicap for spec in specs}
        # Keep the order of the requests, not the random order of readiness.
        self._shared = self._shared or next(iter(wanted), None)
        missing = [spec for name, spec in wanted.items() if name not in self._running]
        if missing:
            coming = {spec.name: spec.without_handicap for spec in next_specs}
            await self._let_go({*wanted}, {*coming}, needed=len(missing))
            free_slots = self.most - len(self._running) - len(missing)
            others = [spec for name, spec in coming.items() if name not in self._running | wanted]
            await self._start([*missing, *others[: max(free_slots, 0)]])
        for name in wanted:
            if name in self._failed:
                raise self._failed[name]

    def engine(self, spec: EngineSpec) -> RunningEngine:
        """An engine that was requested before."""
        return self._running[spec.name].engine

    @property
    def urls(self) -> tuple[str, ...]:
        """Those of all that are up."""
        return tuple(started.engine.url for started in self._running.values())

    async def close(self) -> None:
        """Stop every engine, the last one started first; an error or a cancellation waits for all of them."""
        errors: list[BaseException] = []
        for name in reversed(list(self._running)):
            try:
                await self._stop(name)
            except BaseException as error:
                errors.append(error)
        # A cancellation takes precedence: its caller waits for it.
        errors.sort(key=lambda error: not isinstance(error, asyncio.CancelledError))
        if errors:
            raise errors[0]

    async def _let_go(self, wanted: set[str], coming: set[str], needed: int) -> None:
        # Engines that are not needed soon stop first; those needed now and the shared one never stop.
        kept = {*wanted, self._shared}
        for name in [name for name in self._running if name not in kept | coming]:
            await self._stop(name)
        surplus = len(self._running) + needed - self.most
        for name in [name for name in reversed(list(self._running)) if name not in kept][: max(surplus, 0)]:
            await self._stop(name)

    async def _start(self, specs: Sequence[EngineSpec]) -> None:
        self.say(f"starting {' and '.join(spec.about for spec in specs)}")
        if self.one_by_one:
            for spec in specs:
                await self._start_one(spec)
            return
        async with asyncio.TaskGroup() as tasks:
            for spec in specs:
                tasks.create_task(self._start_one(spec))

    async def _start_one(self, spec: EngineSpec) -> None:
        self._failed.pop(spec.name, None)
        serving = self.launch(spec)
        try:
            engine = await serving.__aenter__()
        except PhasewiseError as error:
            # A failed start must not stop the others.
            self._failed[spec.name] = error
            return
        self._running[spec.name] = _Started(engine, serving)

    async def _stop(self, name: str) -> None:
        await self._running.pop(name).serving.__aexit__(None, None, None)


@asynccontextmanager
async def running_engines(
    launch: Launch, most: int, say: Say, *, one_by_one: bool = False
) -> AsyncIterator[Engines]:
    """Engines that are always stopped at the end."""
    engines = Engines(launch, most, say, one_by_one)
    try:
        yield engines
    finally:
        await engines.close()
