"""Runs a virtual engine in real time: each step lasts its cost, and its tokens are handed out when it ends.

What a step does is the virtual engine's to say; HTTP, texts and the causes of faults are left to others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

from phasewise.fake_engine.virtual_engine import EmittedToken, StepReport, VirtualEngine, VirtualRequest

MAX_LAG_S = 0.25
"""Timers are late by a millisecond or so; the next step is brought forward by as much, so that a second holds
as many steps as it should. Beyond this lag the machine is too slow for the cost model and time is let go."""


class UnixClock:
    """Wall-clock seconds that never jump: the event loop's clock, shifted once."""

    def __init__(self) -> None:
        self._shift_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() + self._shift_s


class GenerationFailed(Exception):
    """The engine cannot go on with a request; it tells no reason, as vLLM tells none."""


class TokenStream:
    """The tokens of one request, as the engine hands them out."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[EmittedToken | GenerationFailed | None] = asyncio.Queue()

    def put(self, token: EmittedToken) -> None:
        """Hand out a token."""
        self._queue.put_nowait(token)

    def fail(self) -> None:
        """There will be no further token, by the engine's fault."""
        self._queue.put_nowait(GenerationFailed())

    def break_off(self) -> None:
        """Nobody reads this any more: wake the reader."""
        self._queue.put_nowait(None)

    async def next(self) -> EmittedToken | None:
        """The next token; the last one has the account with it. None when the stream was broken off."""
        token = await self._queue.get()
        if isinstance(token, GenerationFailed):
            raise token
        return token


class EngineLoop:
    """The one driver of one virtual engine."""

    def __init__(
        self,
        engine: VirtualEngine,
        clock: Callable[[], float],
        on_step: Callable[[StepReport], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._on_step = on_step
        self._on_idle = on_idle
        self._streams: dict[str, TokenStream] = {}
        self._aborted: list[str] = []
        self._latest_arrival_s = 0.0
        self._wake = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self._resting = False
        engine.when_kept_changes(self._wake.set)

    def show_load(self, observe: Callable[[int, int, float, int], None]) -> None:
        """Tell running, waiting, KV use and deferred as they are, unless a step is on: its end will tell."""
        if self._resting:
            engine = self._engine
            observe(engine.running, engine.waiting, engine.kv_usage, engine.deferred)

    def submit(self, request: VirtualRequest) -> TokenStream:
        """Queue a request."""
        self._latest_arrival_s = self._clock()
        self._engine.add(request, self._latest_arrival_s)
        stream = self._streams[request.request_id] = TokenStream()
        self._wake.set()
        return stream

    def abort(self, request_id: str) -> None:
        """End a request at the next boundary between two steps."""
        if self._streams.pop(request_id, None) is not None:
            self._aborted.append(request_id)
            self._wake.set()

    def pause(self) -> None:
        """Do no further step."""
        self._running.clear()

    def resume(self) -> None:
        """Go on after a pause."""
        self._running.set()

    async def run(self) -> None:
        """Step for ever."""
        due_s = 0.0
        while True:
            self._drop_aborted()
            if not due_s and self._engine.deferred:
                self._on_idle()  # KV was waited for until now: what comes next begins here
            report = self._step(due_s) if self._running.is_set() else None
            if report is None:
                if due_s and (self._running.is_set() or not self._engine.has_work):
                    self._on_idle()
                await self._rest()
                due_s = 0.0
                continue
            due_s = report.step.ended_unix_s
            # Even when late: others must have their turn.
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            self._hand_out(report)

    def _step(self, due_s: float) -> StepReport | None:
        now_s = self._clock()
        for request_id in self._engine.settle(now_s):
            self._streams.pop(request_id).fail()
        # On time even where the event loop was late, but not before those arrived whom the step serves.
        on_time_s = max(due_s, self._latest_arrival_s) if now_s - due_s < MAX_LAG_S else now_s
        return self._engine.step(on_time_s)

    async def _rest(self) -> None:
        """Wait for work, or for KV to come or to be given up."""
        self._wake.clear()
        if not self._running.is_set():
            await self._running.wait()
            return
        rest_s = self._engine.next_event_s - self._clock()
        self._resting = True
        with suppress(TimeoutError):
            async with asyncio.timeout(None if rest_s == inf else rest_s):
                await self._wake.wait()
        self._resting = False

    def _drop_aborted(self) -> None:
        for request_id in self._aborted:
            self._engine.abort(request_id)
        self._aborted.clear()

    def _hand_out(self, report: StepReport) -> None:
        for token in report.emitted:
            stream = self._streams.get(token.request_id)
            if stream is None:
                continue  # its client has gone in this very step
            if token.finished is not None:
                del self._streams[token.request_id]
            stream.put(token)
        self._on_step(report)
