"""Runs a virtual engine in real time: each step lasts its cost, and its tokens are handed out when it ends.

What a step does is the virtual engine's to say; HTTP, texts and the causes of faults are left to others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

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


class TokenStream:
    """The tokens of one request, as the engine hands them out."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[EmittedToken | None] = asyncio.Queue()

    def put(self, token: EmittedToken) -> None:
        """Hand out a token."""
        self._queue.put_nowait(token)

    def break_off(self) -> None:
        """Nobody reads this any more: wake the reader."""
        self._queue.put_nowait(None)

    async def next(self) -> EmittedToken | None:
        """The next token; the last one has the account with it. None when the stream was broken off."""
        return await self._queue.get()


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
            if not self._engine.has_work and due_s:
                self._on_idle()
            if not self._engine.has_work or not self._running.is_set():
                await self._wait_for_work()
                due_s = 0.0
                continue
            now_s = self._clock()
            # On time even where the event loop was late, but not before those arrived whom the step serves.
            on_time_s = max(due_s, self._latest_arrival_s) if now_s - due_s < MAX_LAG_S else now_s
            report = self._engine.step(on_time_s)
            if report is None:
                continue
            due_s = report.step.ended_unix_s
            # Even when late: others must have their turn.
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            self._hand_out(report)

    async def _wait_for_work(self) -> None:
        self._wake.clear()
        if not self._running.is_set():
            await self._running.wait()
        else:
            await self._wake.wait()

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
