"""Parses large bodies in another process.

The parser holds the interpreter's lock, so that a thread of this process would stall every stream.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import Endpoint
from phasewise.core.value import value
from phasewise.gateway.api.fields import Parsed, parse_body
from phasewise.gateway.api.prompt_prefix import PrefixHashing

MOST_WAITING = 32
"""Bodies of one tenant: each takes up to some tenths of a second."""


@value
class Rejection:
    """A rejection that can be sent between processes."""

    kind: RejectionKind
    message: str
    param: str | None
    hint: str | None


Hashes = tuple[int, ...]
_NOT_NOW = Rejection(
    RejectionKind.BODIES_FULL, "the gateway cannot read large bodies now", None, "try again soon"
)


def parse_aside(
    endpoint: Endpoint, body: bytes, hashing: PrefixHashing | None, salt: bytes | None
) -> tuple[Parsed, Hashes] | Rejection:
    """Parse a body in the other process. What is large is not sent back: the fields, an unchanged body."""
    try:
        parsed = parse_body(endpoint, body)
    except RequestRejected as rejection:
        return Rejection(rejection.kind, rejection.message, rejection.param, rejection.hint)
    hashes = () if hashing is None else hashing.hashes(endpoint, parsed.fields, salt)
    upstream_body = b"" if parsed.upstream_body == body else parsed.upstream_body
    return replace(parsed, fields={}, upstream_body=upstream_body), hashes


class LargeBodies:
    """The other process: started for the first large body, one body at a time, started again if it dies.

    Each tenant has one body there at a time, and few that wait: nobody waits for all of another one's.
    """

    def __init__(self, hashing: PrefixHashing | None) -> None:
        self.hashing = hashing
        self._process: ProcessPoolExecutor | None = None
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[str] = Counter()

    async def parse(
        self, endpoint: Endpoint, body: bytes, tenant: str, salt: bytes | None
    ) -> tuple[Parsed, Hashes]:
        """Parse a body; raises RequestRejected."""
        if self._waiting[tenant] >= MOST_WAITING:
            raise RequestRejected(
                RejectionKind.BODIES_FULL, "too many large bodies wait to be read", hint="try again soon"
            )
        self._waiting[tenant] += 1
        try:
            async with self._turns[tenant]:
                found = await self._parsed(endpoint, body, salt)
        finally:
            self._waiting[tenant] -= 1
        if isinstance(found, Rejection):
            raise RequestRejected(found.kind, found.message, param=found.param, hint=found.hint)
        parsed, hashes = found
        return (parsed if parsed.upstream_body else replace(parsed, upstream_body=body)), hashes

    async def _parsed(
        self, endpoint: Endpoint, body: bytes, salt: bytes | None
    ) -> tuple[Parsed, Hashes] | Rejection:
        process = self._process = self._process or _started()
        try:
            return await self._send(process, endpoint, body, salt)
        except BrokenProcessPool:
            # Killed, most likely for want of memory. Each body that it had tries once more.
            if self._process is process:
                self._process = _started()
            try:
                return await self._send(self._process, endpoint, body, salt)
            except BrokenProcessPool:
                return _NOT_NOW

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.shutdown(wait=False, cancel_futures=True)
            self._process = None

    async def _send(
        self, process: ProcessPoolExecutor | None, endpoint: Endpoint, body: bytes, salt: bytes | None
    ) -> tuple[Parsed, Hashes] | Rejection:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(process, parse_aside, endpoint, body, self.hashing, salt)


def _started() -> ProcessPoolExecutor:
    # Not forked: a copy of this process would hold its sockets.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_leave_signals_to_the_parent)


def _leave_signals_to_the_parent() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
