"""Reads bodies: here, or those that take long in another process.

The parser holds the interpreter's lock, so that a thread of this process would stall every stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.prefixes import BLOCK_BYTES
from phasewise.core.request import Endpoint
from phasewise.core.value import value
from phasewise.gateway.answer_cache.headers import CacheWishes
from phasewise.gateway.answer_cache.lookup import CacheEntrance, CacheLookup
from phasewise.gateway.api.fields import Parsed, parse_body
from phasewise.gateway.api.forwarded import parse_json
from phasewise.gateway.api.prompt_prefix import PrefixHashing, prompt_text
from phasewise.gateway.api.reading_process import SMALL_BYTES, ReadingProcess, ReadingTimes, TakesLong, Weight

# Looking up a member of an enum is slow.
_FORWARDED = Endpoint.FORWARDED


class Unread(NamedTuple):
    """A body, and what its reading depends on."""

    endpoint: Endpoint
    body: bytes
    wishes: CacheWishes
    tenant: str
    salt: bytes | None


@dataclass(slots=True)
class Read:
    """A parsed body, its prefix hashes, its conversation, and its cache look-up, if there is a cache."""

    parsed: Parsed
    hashes: tuple[int, ...] = ()
    conversation: int = 0
    lookup: CacheLookup | None = None


@value
class BodyReader:
    """Does all work that grows with the size of a body. It changes no state: any process can do it.

    `hashing` is None if no policy uses hashes: they cost a pass over the prompt. `entrance` is None without
    an answer cache. With `passes_unknown`, engines get fields that the gateway does not know, even if it
    `lends_rights`.
    """

    hashing: PrefixHashing | None = None
    entrance: CacheEntrance | None = None
    lends_rights: bool = True
    passes_unknown: bool = False

    def read(self, unread: Unread, judge: Callable[[Weight], None] | None = None) -> Read:
        """Read a body; raises RequestRejected, and what `judge` raises."""
        endpoint, body, wishes, tenant, salt = unread
        lends_rights, passes_unknown = self.lends_rights, self.passes_unknown
        if endpoint is _FORWARDED:
            return Read(parse_json(body, lends_rights=lends_rights, judge=judge))
        parsed = parse_body(
            endpoint, body, lends_rights=lends_rights, passes_unknown=passes_unknown, judge=judge
        )
        found = Read(parsed)
        if self.entrance is not None and endpoint.is_completion:
            found.lookup = self.entrance.enter(endpoint, found.parsed.fields, wishes, tenant)
        if self.hashing is not None and len(body) >= BLOCK_BYTES:
            fields = found.parsed.fields
            found.hashes = self.hashing.hashes(endpoint, fields, salt)
            found.conversation = self.hashing.conversation(endpoint, fields, found.hashes)
        return found


@dataclass(slots=True)
class ReadAside:
    """What the other process returns; `weight` is None if the body could not even be parsed."""

    found: Read | RequestRejected
    weight: Weight | None = None
    took_s: float = 0.0


def read_aside(reader: BodyReader, unread: Unread) -> ReadAside:
    """Read a body in the other process. What is large is not sent back: the fields, an unchanged body."""
    weights: list[Weight] = []
    began_s = time.thread_time()
    found: Read | RequestRejected
    try:
        found = reader.read(unread, weights.append)
    except RequestRejected as rejection:
        found = _without_frames(rejection)
    took_s = time.thread_time() - began_s
    if isinstance(found, Read):
        text = prompt_text(unread.endpoint, found.parsed.fields)
        upstream_body = b"" if found.parsed.upstream_body == unread.body else found.parsed.upstream_body
        found.parsed = replace(found.parsed, fields={}, text=text, upstream_body=upstream_body)
    return ReadAside(found, weights[0] if weights else None, took_s)


def _without_frames(rejection: RequestRejected) -> RequestRejected:
    """The same error; one that a local variable of a frame in its own traceback names would keep the body."""
    return RequestRejected(rejection.kind, rejection.message, param=rejection.param, hint=rejection.hint)


class Bodies:
    """Reads bodies, each where it stalls no stream. Those that take long wait for their tenant's turn: each
    tenant has one of them in the other process, so that nobody waits for all of another one's.
    """

    def __init__(self, reader: BodyReader) -> None:
        self.reader = reader
        self.times = ReadingTimes()
        self.helper = ReadingProcess(read_aside)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def read(self, unread: Unread, until_s: float) -> Read:
        """Read a body, whose turn must come by `until_s` on the monotonic clock; raises RequestRejected."""
        if len(unread.body) <= SMALL_BYTES:
            return self.reader.read(unread)
        try:
            return self._read_here(unread)
        except TakesLong:
            return await self._read_aside(unread, until_s)

    def _read_here(self, unread: Unread) -> Read:
        self.times.check_bytes(unread.body)
        weight: Weight | None = None

        def judge(found: Weight) -> None:
            nonlocal weight
            self.times.check(found)
            weight = found

        began_s = time.thread_time()
        try:
            return self.reader.read(unread, judge)
        finally:
            # A rejected one took its time too.
            if weight is not None:
                self.times.note(weight, time.thread_time() - began_s)

    async def _read_aside(self, unread: Unread, until_s: float) -> Read:
        turn = self._turns[unread.tenant]
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
            read = await self.helper.read(self.reader, unread)
        finally:
            turn.release()
        if read is None:
            raise RequestRejected(
                RejectionKind.BODIES_FULL, "the gateway cannot read large bodies now", hint="try again soon"
            )
        if read.weight is not None:
            self.times.note(read.weight, read.took_s)
        found = read.found
        if isinstance(found, RequestRejected):
            raise _without_frames(found)
        if not found.parsed.upstream_body:
            found.parsed = replace(found.parsed, upstream_body=unread.body)
        return found
