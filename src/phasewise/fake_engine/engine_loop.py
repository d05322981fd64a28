"""Runs a virtual engine in real time: each step lasts its cost, and its tokens are delivered when it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf

from phasewise.simulator.engine import EmittedToken, StepReport, VirtualEngine, VirtualRequest

MAX_LAG_S = 0.25
"""Timers are late by a millisecond or so; the next step starts earlier by as much, so that a second holds as
many steps as it should. Beyond this lag the machine is too slow for the cost model, and the time is lost."""


class UnixClock:
    """Wall-clock seconds that never jump: the event loop's clock, shifted once."""

    def __init__(self) -> None:
        self._shift_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() + self._shift_s


class GenerationFailed(Exception):
    """The engine cannot continue a request; like vLLM, it reports no reason."""


class TokenStream:
    """The tokens of one call's requests, as the engine delivers them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[EmittedToken | GenerationFailed | None] = asyncio.Queue()

    def put(self, token: EmittedToken) -> None:
        """Deliver a token."""
        self._queue.put_nowait(token)

    def fail(self) -> None:
        """End the stream because the engine failed."""
        self._queue.put_nowait(GenerationFailed())

    def break_off(self) -> None:
        """End the stream because its client is gone, and wake the reader."""
        self._queue.put_nowait(None)

    async def next(self) -> EmittedToken | None:
        """The next token; a request's last one carries its account. None when the stream was broken off."""
        token = await self._queue.get()
        if isinstance(token, GenerationFailed):
            raise token
        return token


class EngineLoop:
    """The only driver of one virtual engine."""

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
        self._idle = False
        engine.when_kept_changes(self._wake.set)

    def show_load(self, observe: Callable[[int, int, float, int], None]) -> None:
        """Report running, waiting, KV usage and deferred, except during a step, whose end reports them."""
        if self._idle:
            engine = self._engine
            observe(engine.running, engine.waiting, engine.kv_usage, engine.deferred)

    def submit(self, requests: Iterable[VirtualRequest]) -> TokenStream:
        """Queue the requests of one call."""
        self._latest_arrival_s, stream = self._clock(), TokenStream()
        for request in requests:
            self._engine.add(request, self._latest_arrival_s)
            self._streams[request.request_id] = stream
        self._wake.set()
        return stream

    def abort(self, request_id: str) -> None:
        """End a request at the next boundary between two steps."""
        if self._streams.pop(request_id, None) is not None:
            self._aborted.append(request_id)
            self._wake.set()

    def pause(self) -> None:
        """Stop stepping."""
        self._running.clear()

    def resume(self) -> None:
        """Continue after a pause."""
        self._running.set()

    async def run(self) -> None:
        """Step for ever."""
        due_s = 0.0
        while True:
            for request_id in self._aborted:
                self._engine.abort(request_id)
            self._aborted.clear()
            if not due_s and self._engine.deferred:
                self._on_idle()  # the engine waited for KV until now: the next step starts here
            report = self._step(due_s) if self._running.is_set() else None
            if report is None:
                if due_s and (self._running.is_set() or not self._engine.has_work):
                    self._on_idle()
                await self._rest()
                due_s = 0.0
                continue
            due_s = report.step.ended_unix_s
            # Sleeps even when late, so that other tasks run.
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            self._hand_out(report)

    def _step(self, due_s: float) -> StepReport | None:
        now_s = self._clock()
        for request_id in self._engine.settle(now_s):
            self._streams.pop(request_id).fail()
        # On time even if the event loop was late, but not before the requests that the step serves arrived.
        on_time_s = max(due_s, self._latest_arrival_s) if now_s - due_s < MAX_LAG_S else now_s
        return self._engine.step(on_time_s)

    async def _rest(self) -> None:
        """Wait for work, or for the next event of a KV transfer."""
        self._wake.clear()
        if not self._running.is_set():
            await self._running.wait()
            return
        rest_s = self._engine.next_event_s - self._clock()
        self._idle = True
        with suppress(TimeoutError):
            async with asyncio.timeout(None if rest_s == inf else rest_s):
                await self._wake.wait()
        self._idle = False

    def _hand_out(self, report: StepReport) -> None:
        for token in report.emitted:
            stream = self._streams.get(token.request_id)
            if stream is None:
                continue  # its client left during this step
            if token.finished is not None:
                del self._streams[token.request_id]
            stream.put(token)
        self._on_step(report)
