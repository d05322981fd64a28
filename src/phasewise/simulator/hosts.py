"""An engine in virtual time: it steps while it has work, reports to those who wait, and may die."""

from __future__ import annotations

from typing import Protocol

from phasewise.core.errors import FailureKind
from phasewise.core.worker import Worker
from phasewise.simulator.clock import VirtualClock
from phasewise.simulator.counting_engine import CountingEngine
from phasewise.simulator.links import Links
from phasewise.simulator.requests import CountedRequest

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

    def landed(self, request: CountedRequest, engine: CountingEngine, *, lost: bool) -> None:
        """KV has come, or is lost because its engine has died."""
        if engine is not self.engine or not self.up:
            return
        if lost:
            engine.abort(request)
            self._waiters.pop(request.name)[1].lost(self._clock.now_s, FailureKind.KV_TRANSFER)
        else:
            engine.land(request)
            self._stir()

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
            self._links.move(
                source.worker.name, self.worker.name, tokens, _Landing(self, self.engine, request, source)
            )


class _Landing:
    """The end of a KV transfer."""

    def __init__(
        self, host: EngineHost, engine: CountingEngine, request: CountedRequest, source: EngineHost
    ) -> None:
        self._host = host
        self._engine = engine
        self._request = request
        self._source = source
        self._from = source.engine

    def __call__(self) -> None:
        source = self._source
        source.release_kept(self._request.name)
        lost = not source.up or source.engine is not self._from
        self._host.landed(self._request, self._engine, lost=lost)
