"""Engines in virtual time: the clock, the links between engines, and engines that step while they can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from phasewise.core.errors import FailureKind
from phasewise.core.worker import Worker
from phasewise.simulator.counting_engine import CountingEngine
from phasewise.simulator.requests import CountedRequest


class VirtualClock:
    """Events in the order of their times; those of the same time in the order in which they were planned."""

    __slots__ = ("_events", "_planned", "background", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.background = 0
        """Events that repeat for ever: when only they are left, nothing more happens."""
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, when_s: float, act: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        """Call something at that time."""
        heappush(self._events, (when_s, self._planned, act, arguments))
        self._planned += 1

    def run(self, until_s: float = inf) -> None:
        """Until nothing is left to happen up to that time."""
        events = self._events
        while len(events) > self.background and events[0][0] <= until_s:
            self.now_s, _, act, arguments = heappop(events)
            act(*arguments)
        if until_s < inf:
            self.now_s = max(self.now_s, until_s)


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """How KV moves: what each transfer takes at least, each engine's bandwidth, and the size of the KV."""

    bytes_per_s: float = 3.5e9
    floor_s: float = 0.003
    kv_bytes_per_token: int = 23_040


@dataclass(slots=True, eq=False)
class _Transfer:
    source: str
    target: str
    left_bytes: float
    done: Callable[[], None]
    rate: float = 0.0
    since_s: float = 0.0
    plan: int = 0
    """Grows with every new rate: an end that was planned for an older one does not count."""


class Links:
    """One link per engine. Transfers that share an engine, at either end, share its bandwidth equally."""

    def __init__(self, clock: VirtualClock, speed: LinkSpeed) -> None:
        self.speed = speed
        self._clock = clock
        self._by_engine: dict[str, list[_Transfer]] = {}

    def move(self, source: str, target: str, tokens: int, done: Callable[[], None]) -> None:
        """Move the KV of so many tokens."""
        transfer = _Transfer(source, target, float(tokens * self.speed.kv_bytes_per_token), done)
        self._clock.at(self._clock.now_s + self.speed.floor_s, self._begin, transfer)

    def _begin(self, transfer: _Transfer) -> None:
        transfer.since_s = self._clock.now_s
        for engine in (transfer.source, transfer.target):
            self._by_engine.setdefault(engine, []).append(transfer)
        self._share(transfer)

    def _end(self, transfer: _Transfer, plan: int) -> None:
        if plan != transfer.plan:
            return
        for engine in (transfer.source, transfer.target):
            self._by_engine[engine].remove(transfer)
        self._share(transfer)
        transfer.done()

    def _share(self, changed: _Transfer) -> None:
        """Rates change where a transfer has begun or ended."""
        now_s = self._clock.now_s
        near = {
            id(transfer): transfer
            for name in (changed.source, changed.target)
            for transfer in self._by_engine[name]
        }
        for transfer in near.values():
            busiest = max(len(self._by_engine[engine]) for engine in (transfer.source, transfer.target))
            rate = self.speed.bytes_per_s / busiest
            if rate == transfer.rate:
                continue
            transfer.left_bytes -= (now_s - transfer.since_s) * transfer.rate
            transfer.since_s, transfer.rate = now_s, rate
            transfer.plan += 1
            left_s = max(0.0, transfer.left_bytes) / rate
            self._clock.at(now_s + left_s, self._end, transfer, transfer.plan)


KV_LEASE_S = 30.0
"""How long an engine keeps KV that nobody fetches."""


class Waiter(Protocol):
    """Waits for a request's tokens."""

    def begun(self, now_s: float) -> None:
        """The first token has come."""

    def finished(self, now_s: float) -> None:
        """The last token has come."""

    def lost(self, now_s: float, kind: FailureKind) -> None:
        """The engine has died, or the KV that it was to fetch is gone."""


class EngineHost:
    """One engine and its clock. A dead one is up again with another engine, in another incarnation."""

    def __init__(self, clock: VirtualClock, worker: Worker, engine: CountingEngine, links: Links) -> None:
        self.worker = worker
        self.engine = engine
        self.up = True
        self.busy_s = 0.0
        self._clock = clock
        self._links = links
        self._waiters: dict[str, tuple[CountedRequest, Waiter, EngineHost | None]] = {}
        self._ends_s: float | None = None
        self._began_s = 0.0

    def submit(self, request: CountedRequest, waiter: Waiter, source: EngineHost | None = None) -> None:
        """Send a request; the KV of its prompt is with `source`, if that has computed it."""
        self._waiters[request.name] = (request, waiter, source)
        self.engine.add(request, self._clock.now_s)
        self._stir()

    def die(self) -> None:
        """Lose all requests and all KV."""
        now_s = self._clock.now_s
        waiters, self._waiters, self.up, self._ends_s = self._waiters, {}, False, None
        self.engine.stop(now_s)
        for _, waiter, _ in waiters.values():
            waiter.lost(now_s, FailureKind.CLOSED)

    def revive(self, worker: Worker, engine: CountingEngine) -> None:
        """Start again, with nothing in its cache."""
        self.worker, self.engine, self.up = worker, engine, True

    def release_kept(self, name: str) -> None:
        """KV that was kept for another engine is not needed any more."""
        if self.up and self.engine.release_kept(name):
            self._stir()

    def _landed(
        self, request: CountedRequest, engine: CountingEngine, source: EngineHost, kept_by: CountingEngine
    ) -> None:
        """KV has come, or is lost because its engine has died."""
        source.release_kept(request.name)
        if engine is not self.engine or not self.up:
            return
        if source.up and source.engine is kept_by:
            engine.land(request)
            self._stir()
        else:
            engine.abort(request)
            self._waiters.pop(request.name)[1].lost(self._clock.now_s, FailureKind.KV_TRANSFER)

    def _stir(self) -> None:
        """Something has arrived: step, or let the stretch under way end sooner."""
        now_s = self._clock.now_s
        if self._ends_s is None:
            self._begin(now_s)
        elif (ends_s := self.engine.cut(now_s)) is not None:
            self._plan(ends_s)

    def _begin(self, now_s: float) -> None:
        ends_s = self.engine.begin(now_s)
        if self.engine.to_fetch:
            self._fetch()
        self._ends_s = None
        if ends_s is not None:
            self._began_s = now_s
            self._plan(ends_s)

    def _plan(self, ends_s: float) -> None:
        self._ends_s = ends_s
        self._clock.at(ends_s, self._end, ends_s, self.engine)

    def _end(self, ends_s: float, engine: CountingEngine) -> None:
        if ends_s != self._ends_s or engine is not self.engine:
            return  # the stretch was cut short, or the engine has died
        end = engine.end()
        self.busy_s += ends_s - self._began_s
        waiters = self._waiters
        begun = [waiters[request.name][1] for request in end.begun]
        finished = [waiters.pop(request.name)[1] for request in end.finished]
        for request in end.finished:
            if request.keep_kv:
                self._clock.at(ends_s + KV_LEASE_S, self.release_kept, request.name)
        self._begin(ends_s)
        for waiter in begun:
            waiter.begun(ends_s)
        for waiter in finished:
            waiter.finished(ends_s)

    def _fetch(self) -> None:
        fetches, self.engine.to_fetch = self.engine.to_fetch, []
        for request, tokens in fetches:
            source = self._waiters[request.name][2]
            if source is None:
                raise ValueError("KV is to be fetched from nowhere")
            landed = partial(self._landed, request, self.engine, source, source.engine)
            self._links.move(source.worker.name, self.worker.name, tokens, landed)
