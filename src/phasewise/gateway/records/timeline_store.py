"""The latest timelines in memory, encoded, by id and in the order of their ends; lost with the process."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import field
from heapq import nlargest
from typing import NamedTuple, TypeVar

from phasewise.core.latency import longest_stall_s, took_s, tpot_s, ttft_s
from phasewise.core.timeline import Timeline
from phasewise.core.timeline_record import decode, encode
from phasewise.core.value import value

T = TypeVar("T")

CAPACITY_BYTES = 64 * 1024 * 1024
ENTRY_BYTES = 512
"""The size of an entry beside its line: two ids, two floats and entries in three dicts."""

# vLLM prepends the endpoint's name to the id that it is sent (for one of several answers, its number too). It
# appends the prompt's number and a random suffix; the gateway appends the attempt's number.
_PREFIX = r"(?:[0-9]+_)?(?:(?:chatcmpl|cmpl|embd)-|resp_)?"
_ENGINES_FORM = re.compile(_PREFIX + r"([0-9a-f]{32})(?:[-_][A-Za-z0-9_-]*)?")
_ITS_BEGINNING = re.compile(_PREFIX + r"([0-9a-f]{1,32})")


def gateway_id_in(text: str) -> str | None:
    """The gateway's id inside an engine's id of the same request; None if there is none."""
    found = _ENGINES_FORM.fullmatch(text)
    return None if found is None else found[1]


class RecordLine(NamedTuple):
    """A request as JSON, with its number in the process that served it."""

    text: bytes
    ended_unix_s: float = 0.0
    process: int = 0
    number: int = 0


@value
class FoundRequests:
    """Requests, oldest first, and after which number of each process to continue.

    `dropped` counts requests after the cursor that newer ones have replaced, `of` those that were looked at.
    """

    lines: list[RecordLine]
    ends: dict[int, int] = field(default_factory=dict)
    more: bool = False
    dropped: int = 0
    of: int = 0

    @property
    def texts(self) -> list[bytes]:
        """The lines alone."""
        return [line.text for line in self.lines]


class _Entry(NamedTuple):
    line: RecordLine
    request_id: str
    client_request_id: str | None
    latest_end_unix_s: float
    tenant: str


class TimelineStore:
    """A ring of encoded timelines, bounded in number and bytes; a TimelineSink.

    Every timeline gets the next number of this `process`. A process should start above the numbers of the one
    before it, so that a reader misses nothing after a restart.
    """

    def __init__(
        self,
        capacity: int,
        capacity_bytes: int = CAPACITY_BYTES,
        *,
        first_number: int = 1,
        process: int = 0,
    ) -> None:
        self._process = process
        self.capacity = capacity
        self._capacity_bytes = capacity_bytes
        # Exactly the numbers from _oldest up to, not including, _next.
        self._entries: dict[int, _Entry] = {}
        self._number_of: dict[str, int] = {}
        # Of requests that share a client's id, the newest.
        self._number_of_clients: dict[str, int] = {}
        self._first = self._oldest = self._next = first_number
        self._bytes = 0
        self._latest_end_unix_s = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, timeline: Timeline) -> None:
        """Keep the timeline; drop the oldest ones beyond the capacity."""
        ended_unix_s = timeline.started_unix_s + timeline.ended_s
        self._latest_end_unix_s = max(self._latest_end_unix_s, ended_unix_s)
        text, number, client_id = encode(timeline), self._next, timeline.client_request_id
        self._next += 1
        self._entries[number] = _Entry(
            RecordLine(text, ended_unix_s, self._process, number),
            timeline.request_id,
            client_id,
            self._latest_end_unix_s,
            timeline.tenant,
        )
        self._number_of[timeline.request_id] = number
        if client_id is not None:
            self._number_of_clients[client_id] = number
        self._bytes += len(text) + ENTRY_BYTES
        while len(self._entries) > self.capacity or self._bytes > self._capacity_bytes:
            self._forget_oldest()

    def get(self, any_id: str) -> bytes | None:
        """One timeline as JSON: by the gateway's id, an engine's id that holds it, or the client's own.

        The gateway's id comes first, because a client can choose one that looks like it.
        """
        number = self._by_own_id(any_id)
        if number is None:
            number = self._number_of_clients.get(any_id)
        return None if number is None else self._entries[number].line.text

    def _by_own_id(self, any_id: str) -> int | None:
        number = self._number_of.get(any_id)
        if number is None and (own_id := gateway_id_in(any_id)):
            number = self._number_of.get(own_id)
        return number

    def newest(self, limit: int, tenant: str | None = None) -> FoundRequests:
        """The last timelines, of one tenant if it is named; its own are searched in the newest of all."""
        if tenant is None:
            found = self._last(limit)
        else:
            its = [entry for entry in self._last(LOOKED_AT) if entry.tenant == tenant]
            found = its[max(0, len(its) - limit) :]
        return self._found(found, self._next - 1)

    async def matching(self, any_id: str, limit: int) -> FoundRequests:
        """Every timeline that an id can mean, oldest first.

        A whole id comes first: the gateway's or an engine's that holds it, then the client's own, which
        several requests may have. Otherwise it is taken for the beginning of one of them.
        """
        number = self._by_own_id(any_id)
        if number is not None:
            return self._found([self._entries[number]], self._next - 1)
        of_ours = _ITS_BEGINNING.fullmatch(any_id)
        same: list[_Entry] = []
        begun: list[_Entry] = []
        async for entry in in_turns(self._last(LOOKED_AT) if any_id else (), COMPARED_AT_ONCE):
            client_id = entry.client_request_id or ""
            if client_id == any_id:
                same.append(entry)
            elif client_id.startswith(any_id) or (of_ours and entry.request_id.startswith(of_ours[1])):
                begun.append(entry)
        found = same or begun
        return self._found(found[max(0, len(found) - limit) :], self._next - 1, more=len(found) > limit)

    def _last(self, limit: int) -> list[_Entry]:
        return [self._entries[number] for number in range(max(self._oldest, self._next - limit), self._next)]

    def page(self, limit: int, after: int = 0, ended_since_unix_s: float = 0.0) -> FoundRequests:
        """The first timelines numbered above `after` whose requests ended at or after a time."""
        # A number that was never given out is from another run of the gateway: everything here is new.
        first = self._oldest if after >= self._next else max(after + 1, self._oldest)
        dropped = self._dropped_after(after)
        found: list[_Entry] = []
        last = first - 1
        for number in range(self._first_ended(ended_since_unix_s, first), self._next):
            entry = self._entries[number]
            if entry.line.ended_unix_s < ended_since_unix_s:
                continue
            if len(found) >= limit:
                return self._found(found, last, more=True, dropped=dropped)
            found.append(entry)
            last = number
        return self._found(found, self._next - 1, dropped=dropped)

    def _dropped_after(self, after: int) -> int:
        # A reader that starts with the oldest misses nothing. Timelines of earlier processes are not counted.
        return max(0, self._oldest - max(after + 1, self._first)) if after else 0

    def _first_ended(self, unix_s: float, first: int) -> int:
        # Ends are in order unless the wall clock was set back. The latest end so far is always in order, and
        # nothing before the place where it reaches the time can have ended later.
        numbers = range(first, self._next)
        return first + bisect_left(
            numbers, unix_s, key=lambda number: self._entries[number].latest_end_unix_s
        )

    def _forget_oldest(self) -> None:
        entry = self._entries.pop(self._oldest)
        if self._number_of[entry.request_id] == self._oldest:
            del self._number_of[entry.request_id]
        client_id = entry.client_request_id
        if client_id is not None and self._number_of_clients[client_id] == self._oldest:
            del self._number_of_clients[client_id]
        self._oldest += 1
        self._bytes -= len(entry.line.text) + ENTRY_BYTES

    def _found(
        self, entries: Sequence[_Entry], end: int, *, more: bool = False, dropped: int = 0
    ) -> FoundRequests:
        return FoundRequests([entry.line for entry in entries], {self._process: end}, more, dropped)

    def check_invariants(self) -> None:
        """Numbers have no gap, bytes are counted right, and both bounds hold."""
        if list(self._entries) != list(range(self._oldest, self._next)):
            raise AssertionError(f"kept numbers have a gap between {self._oldest} and {self._next}")
        held = sum(len(entry.line.text) + ENTRY_BYTES for entry in self._entries.values())
        if self._bytes != held:
            raise AssertionError(f"{self._bytes} bytes are booked but {held} held")
        if len(self) > self.capacity or self._bytes > self._capacity_bytes:
            raise AssertionError(f"{len(self)} timelines of {self._bytes} bytes are beyond the bounds")
        if self._number_of != {entry.request_id: number for number, entry in self._entries.items()}:
            raise AssertionError("an id leads to another request's timeline")
        named = {
            entry.client_request_id: number
            for number, entry in self._entries.items()
            if entry.client_request_id
        }
        if named != self._number_of_clients:
            raise AssertionError("a client's id does not lead to the newest of its timelines")


# --- Finds the slowest of the timelines that are kept.

MEASURES: dict[str, Callable[[Timeline], float | None]] = {
    "ttft": ttft_s,
    "tpot": tpot_s,
    "stall": longest_stall_s,
    "e2e": took_s,
}
LOOKED_AT = 10_000
"""How many of the newest timelines are searched: all that are kept, unless more are configured."""
DECODED_AT_ONCE = 16
"""Decoding one takes tens of microseconds; this many per turn of the event loop stall no stream."""
COMPARED_AT_ONCE = 1_000
"""Comparing ids takes tenths of a microsecond each."""


async def slowest(lines: Sequence[RecordLine], measure: str, limit: int) -> list[RecordLine]:
    """The slowest of these timelines that have such a time, slowest first."""
    seconds_of = MEASURES[measure]
    timed: list[tuple[float, int]] = []
    async for place, line in in_turns(list(enumerate(lines)), DECODED_AT_ONCE):
        timeline = decode(line.text)
        seconds = seconds_of(timeline) if timeline.generates else None
        if seconds is not None:
            timed.append((seconds, place))
    return [lines[place] for _, place in nlargest(limit, timed)]


async def in_turns(things: Sequence[T], at_once: int) -> AsyncIterator[T]:
    """Each of them; after so many, other tasks of the event loop have their turn."""
    for first in range(0, len(things), at_once):
        for thing in things[first : first + at_once]:
            yield thing
        await asyncio.sleep(0)
