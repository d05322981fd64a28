"""The last so many timelines in memory, encoded, by id and in the order of their ends; lost with the process.

Who may read them, and over what, is the routes' matter.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from phasewise.model.timeline import Timeline
from phasewise.model.timeline_record import encode

CAPACITY_BYTES = 64 * 1024 * 1024
ENTRY_BYTES = 512
"""What an entry takes beside its line: the id, two floats and its places in two dicts."""


class _Entry(NamedTuple):
    request_id: str
    ended_unix_s: float
    latest_end_unix_s: float
    line: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """Some timelines as JSON, oldest first, and the number after which to go on reading.

    `dropped` are those after the number asked for that gave way to newer ones before anybody asked.
    """

    lines: list[bytes]
    next_after: int
    more: bool
    dropped: int = 0


class TimelineStore:
    """A ring of encoded timelines, bounded in number and bytes; a TimelineSink.

    Every timeline gets the next number. A process should begin above the numbers of the one before it, so
    that a reader who goes on after a restart misses nothing.
    """

    def __init__(self, capacity: int, capacity_bytes: int = CAPACITY_BYTES, *, first_number: int = 1) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        # Exactly the numbers from _oldest up to, not including, _next.
        self._entries: dict[int, _Entry] = {}
        self._number_of: dict[str, int] = {}
        self._first = self._oldest = self._next = first_number
        self._bytes = 0
        self._latest_end_unix_s = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, timeline: Timeline) -> None:
        """Keep the timeline, in place of the oldest ones if there is no room."""
        ended_unix_s = timeline.started_unix_s + timeline.ended_s
        self._latest_end_unix_s = max(self._latest_end_unix_s, ended_unix_s)
        line = encode(timeline)
        number = self._next
        self._next += 1
        self._entries[number] = _Entry(timeline.request_id, ended_unix_s, self._latest_end_unix_s, line)
        self._number_of[timeline.request_id] = number
        self._bytes += len(line) + ENTRY_BYTES
        while len(self._entries) > self._capacity or self._bytes > self._capacity_bytes:
            self._forget_oldest()

    def get(self, request_id: str) -> bytes | None:
        """One timeline as JSON."""
        number = self._number_of.get(request_id)
        return None if number is None else self._entries[number].line

    def newest(self, limit: int) -> Page:
        """The last timelines."""
        first = max(self._oldest, self._next - limit)
        return Page([self._entries[it].line for it in range(first, self._next)], self._next - 1, more=False)

    def page(self, limit: int, after: int = 0, ended_since_unix_s: float = 0.0) -> Page:
        """The first timelines numbered above `after` whose requests ended at or after a time."""
        # A number that was never given out is from another life of the gateway: everything here is new to it.
        first = self._oldest if after >= self._next else max(after + 1, self._oldest)
        dropped = self._dropped_after(after)
        lines: list[bytes] = []
        last = first - 1
        for number in range(self._first_ended(ended_since_unix_s, first), self._next):
            entry = self._entries[number]
            if entry.ended_unix_s < ended_since_unix_s:
                continue
            if len(lines) >= limit:
                return Page(lines, last, more=True, dropped=dropped)
            lines.append(entry.line)
            last = number
        return Page(lines, self._next - 1, more=False, dropped=dropped)

    def _dropped_after(self, after: int) -> int:
        # Who begins with the oldest misses nothing; what a process before this one kept, nobody counts.
        return max(0, self._oldest - max(after + 1, self._first)) if after else 0

    def _first_ended(self, unix_s: float, first: int) -> int:
        # Ends are in order but for a wall clock that was set back; the latest end so far is in order always,
        # and nothing before the place where it reaches the time can have ended later.
        numbers = range(first, self._next)
        return first + bisect_left(
            numbers, unix_s, key=lambda number: self._entries[number].latest_end_unix_s
        )

    def _forget_oldest(self) -> None:
        entry = self._entries.pop(self._oldest)
        if self._number_of[entry.request_id] == self._oldest:
            del self._number_of[entry.request_id]
        self._oldest += 1
        self._bytes -= len(entry.line) + ENTRY_BYTES

    def check_invariants(self) -> None:
        """Numbers have no gap, bytes are counted right, and neither bound is passed."""
        if list(self._entries) != list(range(self._oldest, self._next)):
            raise AssertionError(f"kept numbers have a gap between {self._oldest} and {self._next}")
        if self._bytes != (held := sum(len(entry.line) + ENTRY_BYTES for entry in self._entries.values())):
            raise AssertionError(f"{self._bytes} bytes are booked but {held} held")
        if len(self) > self._capacity or self._bytes > self._capacity_bytes:
            raise AssertionError(f"{len(self)} timelines of {self._bytes} bytes are beyond the bounds")
        if any(self._entries[number].request_id != it for it, number in self._number_of.items()):
            raise AssertionError("an id leads to another request's timeline")
