"""Reads large bodies in another process.

The parser holds the interpreter's lock, so that a thread of this process would stall every stream.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import Endpoint
from phasewise.core.value import value
from phasewise.gateway.answer_cache.headers import CacheWishes
from phasewise.gateway.api.body_reader import BodyReader, Read
from phasewise.gateway.api.fields import prompt_text

MOST_WAITING = 32
"""Bodies of one tenant: each takes up to some tenths of a second."""


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


def read_aside(
    reader: BodyReader, endpoint: Endpoint, body: bytes, wishes: CacheWishes, tenant: str, salt: bytes | None
) -> Read | Rejection:
    """Read a body in the other process. What is large is not sent back: the fields, an unchanged body."""
    try:
        found = reader.read(endpoint, body, wishes, tenant, salt)
    except RequestRejected as rejection:
        return Rejection(rejection.kind, rejection.message, rejection.param, rejection.hint)
    text = prompt_text(endpoint, found.parsed.fields)
    upstream_body = b"" if found.parsed.upstream_body == body else found.parsed.upstream_body
    found.parsed = replace(found.parsed, fields={}, text=text, upstream_body=upstream_body)
    return found


class LargeBodies:
    """The other process: started for the first large body, one body at a time, started again if it dies.

    Each tenant has one body there at a time, and few that wait: nobody waits for all of another one's.
    """

    def __init__(self, reader: BodyReader) -> None:
        self.reader = reader
        self._process: ProcessPoolExecutor | None = None
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[str] = Counter()

    async def read(
        self, endpoint: Endpoint, body: bytes, wishes: CacheWishes, tenant: str, salt: bytes | None
    ) -> Read:
        """Read a body; raises RequestRejected."""
        if self._waiting[tenant] >= MOST_WAITING:
            raise RequestRejected(
                RejectionKind.BODIES_FULL, "too many large bodies wait to be read", hint="try again soon"
            )
        self._waiting[tenant] += 1
        try:
            async with self._turns[tenant]:
                found = await self._read(read_aside, self.reader, endpoint, body, wishes, tenant, salt)
        finally:
            self._waiting[tenant] -= 1
        if isinstance(found, Rejection):
            raise RequestRejected(found.kind, found.message, param=found.param, hint=found.hint)
        if not found.parsed.upstream_body:
            found.parsed = replace(found.parsed, upstream_body=body)
        return found

    async def _read(self, work: Callable[..., Read | Rejection], *arguments: object) -> Read | Rejection:
        loop = asyncio.get_running_loop()
        process = self._process = self._process or _started()
        try:
            return await loop.run_in_executor(process, work, *arguments)
        except BrokenProcessPool:
            # Killed, most likely for want of memory. Each body that it had tries once more.
            if self._process is process:
                self._process = _started()
            try:
                return await loop.run_in_executor(self._process, work, *arguments)
            except BrokenProcessPool:
                return _NOT_NOW

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.shutdown(wait=False, cancel_futures=True)
            self._process = None


def _started() -> ProcessPoolExecutor:
    # Not forked: a copy of this process would hold its sockets.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_leave_signals_to_the_parent)


def _leave_signals_to_the_parent() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
