"""Where a body is read: on the event loop, or in a process beside it, by how long such bodies take."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, Generic, TypeVar

from phasewise.core.request import Endpoint
from phasewise.core.value import value
from phasewise.gateway.api.body_checks import MOST_CONTAINERS, count_of

MOST_HERE_S = 0.005
"""A body that is expected to take longer is read in another process."""
SMALL_BYTES = 1_500
"""Not worth a judgement."""
VALUE_BYTES = 512
"""A value of JSON takes as long as so many bytes of text: checks visit each."""
START_NS, LEAST_NS, MOST_NS = 5.0, 1.5, 40.0
"""Per byte: at first, and the bounds of what is learnt. Text takes 0.7 to 5, the worst that was found 25."""
LEARNT_FROM_BYTES = 32 * 1024
FORGETS = 16
MOST_COMMAS = 50_000
"""With more, or with more brackets than a body may have, even parsing takes milliseconds."""


@value
class Weight:
    """How much a body is to read: its bytes, and VALUE_BYTES more for each value.

    Where something in it is checked as a schema, marks of patterns and of JSON in strings count as values.
    """

    endpoint: Endpoint
    with_schemas: bool
    size_bytes: int

    @classmethod
    def of(cls, endpoint: Endpoint, body: bytes, values: int, *, with_schemas: bool) -> Weight:
        """Of a parsed body."""
        if with_schemas:
            marks = sum(count_of(body, mark) for mark in (b"(", b"[", b"{")) + count_of(body, b"\\") // 4
            values = max(values, marks)
        return cls(endpoint, with_schemas, len(body) + values * VALUE_BYTES)


class TakesLong(Exception):
    """The body takes too long for the event loop. Caught within this package."""


class ReadingTimes:
    """Learns what reading takes per byte, from thread CPU time, for each endpoint with and without schemas.

    A costly body counts at once, a cheap one slowly. So up to 125 kB of weight is always read here, and never
    more than 3.3 MB: 1 MB of text in about 5 ms. A hostile body of 6,500 values, after many cheap ones, takes
    at most some 40 ms, and the next such body is read elsewhere.
    """

    def __init__(self) -> None:
        self._ns: dict[tuple[Endpoint, bool], float] = {}

    def check_bytes(self, body: bytes) -> None:
        """Before parsing; raises TakesLong."""
        size = len(body)
        if (
            size * LEAST_NS > MOST_HERE_S * 1e9
            or (size > 2 * MOST_CONTAINERS and count_of(body, b"[") + count_of(body, b"{") > MOST_CONTAINERS)
            or (size > 2 * MOST_COMMAS and count_of(body, b",") > MOST_COMMAS)
        ):
            raise TakesLong

    def check(self, weight: Weight) -> None:
        """After parsing, before everything else; raises TakesLong."""
        ns = self._ns.get((weight.endpoint, weight.with_schemas), START_NS)
        if weight.size_bytes * ns > MOST_HERE_S * 1e9:
            raise TakesLong

    def note(self, weight: Weight, took_s: float) -> None:
        """A body of this weight was read, here or elsewhere."""
        if weight.size_bytes < LEARNT_FROM_BYTES:
            return
        kind = weight.endpoint, weight.with_schemas
        before, now = self._ns.get(kind, START_NS), took_s * 1e9 / weight.size_bytes
        learnt = now if now > before else before + (now - before) / FORGETS
        self._ns[kind] = min(MOST_NS, max(LEAST_NS, learnt))


# --- A process beside the gateway's own, for what would hold the interpreter's lock for long.
#
# It ends when its socket closes, so also when this process is killed. One thread here starts it and speaks to
# it: a task of megabytes is written without the interpreter's lock.

_Answer = TypeVar("_Answer")
AGAIN_AFTER_S = 1.0
"""So long after the process died another one is started, unless a body needs it before."""


@dataclass(slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    channel: Any


class ReadingProcess(Generic[_Answer]):
    """A process that calls `read`, a function of a module, with one task at a time.

    It is started again when it dies.
    """

    def __init__(self, read: Callable[..., _Answer]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(1, "large-bodies")
        self._started: _Started | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Its process id; None before it is started."""
        return None if self._started is None else self._started.process.pid

    def start(self) -> None:
        """Have it ready before the first body that needs it."""
        self._thread.submit(self._living)

    async def read(self, *task: object) -> _Answer | None:
        """What the function returns there; None if the process dies of this task, or is closed."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, task)

    def close(self) -> None:
        """End it, and what it reads."""
        if self._closed:
            return
        self._closed = True
        if self._started is not None:
            self._started.process.kill()
        self._thread.submit(self._bury)
        self._thread.shutdown(wait=False)

    # --- in the thread ------------------------------------------------------------------------------------

    def _ask(self, task: tuple[object, ...]) -> _Answer | None:
        for _ in range(2):
            if self._closed:
                break
            channel = self._living().channel
            try:
                pickle.dump(task, channel)
                channel.flush()
                answer: _Answer = pickle.load(channel)  # noqa: S301 - from our own process
            except (OSError, EOFError, pickle.UnpicklingError):
                # Killed, most likely for want of memory. The task is tried once more.
                self._bury()
            else:
                return answer
        return None

    def _living(self) -> _Started:
        if self._started is not None and self._started.process.poll() is None:
            return self._started
        self._bury()
        module, name = self._read.__module__, self._read.__name__
        begin = f"from {__name__} import serve; from {module} import {name}; serve({name})"
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # Not forked, because a copy of this process would hold its sockets, and in a group of its own,
            # because Ctrl-C is for the gateway, which then still reads bodies.
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-c", begin],
                stdin=theirs.fileno(),
                process_group=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self._started = started = _Started(process, ours.makefile("rwb"))
        Thread(target=self._start_again, args=(process,), daemon=True).start()
        return started

    def _bury(self) -> None:
        if self._started is not None:
            started, self._started = self._started, None
            started.process.kill()
            started.process.wait()
            with suppress(OSError):
                started.channel.close()

    def _start_again(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if not self._closed:
            time.sleep(AGAIN_AFTER_S)
            with suppress(RuntimeError):  # the gateway has stopped
                self.start()


def serve(read: Callable[..., object]) -> None:
    """Answer in the other process until the gateway's end of the socket closes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=0).makefile("rwb")
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        while True:
            task = pickle.load(channel)  # noqa: S301 - from our own gateway
            pickle.dump(read(*task), channel)
            channel.flush()
