"""Reads bodies: here, or those that take long in another process.

The parser holds the interpreter's lock, so that a thread of this process would stall every stream.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import Endpoint
from phasewise.core.value import value
from phasewise.gateway.answer_cache.headers import CacheWishes
from phasewise.gateway.api.body_reader import BodyReader, Read
from phasewise.gateway.api.fields import prompt_text
from phasewise.gateway.api.reading_times import SMALL_BYTES, ReadingTimes, TakesLong, Weight

AGAIN_AFTER_S = 1.0
"""So long after the process died another one is started, unless a body needs it before."""


@value
class Rejection:
    """A rejection that can be sent between processes."""

    kind: RejectionKind
    message: str
    param: str | None
    hint: str | None


_NOT_NOW = Rejection(
    RejectionKind.BODIES_FULL, "the gateway cannot read large bodies now", None, "try again soon"
)


@dataclass(slots=True)
class ReadAside:
    """What the other process returns; `weight` is None if the body could not even be parsed."""

    found: Read | Rejection
    weight: Weight | None = None
    took_s: float = 0.0


def read_aside(
    reader: BodyReader, endpoint: Endpoint, body: bytes, wishes: CacheWishes, tenant: str, salt: bytes | None
) -> ReadAside:
    """Read a body in the other process. What is large is not sent back: the fields, an unchanged body."""
    weights: list[Weight] = []
    began_s = time.thread_time()
    found: Read | Rejection
    try:
        found = reader.read(endpoint, body, wishes, tenant, salt, weights.append)
    except RequestRejected as rejection:
        found = Rejection(rejection.kind, rejection.message, rejection.param, rejection.hint)
    took_s = time.thread_time() - began_s
    if isinstance(found, Read):
        text = prompt_text(endpoint, found.parsed.fields)
        upstream_body = b"" if found.parsed.upstream_body == body else found.parsed.upstream_body
        found.parsed = replace(found.parsed, fields={}, text=text, upstream_body=upstream_body)
    return ReadAside(found, weights[0] if weights else None, took_s)


class Bodies:
    """Reads bodies, each where it stalls no stream. Those that take long wait for their tenant's turn: each
    tenant has one of them in the other process, so that nobody waits for all of another one's.
    """

    def __init__(self, reader: BodyReader) -> None:
        self.reader = reader
        self.times = ReadingTimes()
        self.helper = ReadingProcess()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def read(
        self,
        endpoint: Endpoint,
        body: bytes,
        wishes: CacheWishes,
        tenant: str,
        salt: bytes | None,
        until_s: float,
    ) -> Read:
        """Read a body, whose turn must come by `until_s` on the monotonic clock; raises RequestRejected."""
        if len(body) <= SMALL_BYTES:
            return self.reader.read(endpoint, body, wishes, tenant, salt)
        try:
            return self._read_here(endpoint, body, wishes, tenant, salt)
        except TakesLong:
            return await self._read_aside(endpoint, body, wishes, tenant, salt, until_s)

    def _read_here(
        self, endpoint: Endpoint, body: bytes, wishes: CacheWishes, tenant: str, salt: bytes | None
    ) -> Read:
        self.times.check_bytes(body)
        weight: Weight | None = None

        def judge(found: Weight) -> None:
            nonlocal weight
            self.times.check(found)
            weight = found

        began_s = time.thread_time()
        try:
            return self.reader.read(endpoint, body, wishes, tenant, salt, judge)
        finally:
            # A rejected one took its time too.
            if weight is not None:
                self.times.note(weight, time.thread_time() - began_s)

    async def _read_aside(
        self,
        endpoint: Endpoint,
        body: bytes,
        wishes: CacheWishes,
        tenant: str,
        salt: bytes | None,
        until_s: float,
    ) -> Read:
        turn = self._turns[tenant]
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                await turn.acquire()
        except TimeoutError:
            raise RequestRejected(
                RejectionKind.BODIES_FULL,
                "the gateway reads one large body after another, and this one has waited too long",
                hint="try again soon; with a higher gateway.processes more are read at once",
            ) from None
        try:
            read = await self.helper.read(self.reader, endpoint, body, wishes, tenant, salt)
        finally:
            turn.release()
        if read.weight is not None:
            self.times.note(read.weight, read.took_s)
        found = read.found
        if isinstance(found, Rejection):
            raise RequestRejected(found.kind, found.message, param=found.param, hint=found.hint)
        if not found.parsed.upstream_body:
            found.parsed = replace(found.parsed, upstream_body=body)
        return found


# --- The other process.
#
# It ends when its socket closes, so also when this process is killed. One thread here starts it and speaks to
# it: a body of megabytes is written without the interpreter's lock.


@dataclass(slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    channel: Any


class ReadingProcess:
    """A process that reads one body at a time, and is started again when it dies."""

    def __init__(self) -> None:
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

    async def read(self, *task: object) -> ReadAside:
        """What `read_aside` returns there."""
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

    def _ask(self, task: tuple[object, ...]) -> ReadAside:
        for _ in range(2):
            if self._closed:
                break
            channel = self._living().channel
            try:
                pickle.dump(task, channel)
                channel.flush()
                read: ReadAside = pickle.load(channel)  # noqa: S301 - from our own process
            except (OSError, EOFError, pickle.UnpicklingError):
                # Killed, most likely for want of memory. The body is tried once more.
                self._bury()
            else:
                return read
        return ReadAside(_NOT_NOW)

    def _living(self) -> _Started:
        if self._started is not None and self._started.process.poll() is None:
            return self._started
        self._bury()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # Not forked, because a copy of this process would hold its sockets, and in a group of its own,
            # because Ctrl-C is for the gateway, which then still reads bodies.
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-c", f"from {__name__} import serve; serve()"],
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


def serve() -> None:
    """Read bodies in the other process until the gateway's end of the socket closes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=0).makefile("rwb")
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        while True:
            task = pickle.load(channel)  # noqa: S301 - from our own gateway
            pickle.dump(read_aside(*task), channel)
            channel.flush()
