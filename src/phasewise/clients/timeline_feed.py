"""Reads the timelines that a gateway keeps, each once, and converts their times to our wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import orjson

from phasewise.clients.http_client import Headers, HttpClient, Reply
from phasewise.clients.step_feed import ClockShift
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.timeline import Timeline
from phasewise.core.timeline_record import from_record

PATH = "/phasewise/v1/requests"
OPEN_PATH = f"{PATH}/open"
PAGE_TIMELINES = 1_000
OPEN_TIMELINES = 1_000
MOST_HELD = 50_000
"""Beyond this many between two reads, the oldest are dropped: reading them would take minutes."""
OK, NOT_FOUND = 200, 404


@dataclass(frozen=True, slots=True)
class Missed:
    """What was never read: `dropped` timelines of ended requests, and the newest of the open ones."""

    dropped: int = 0
    still_open: int = 0


class TimelineFeed:
    """Follows one gateway: `skip` what it holds now, then `read` what is new; or read what is open.

    `missed` counts what could not be read.
    """

    def __init__(
        self, client: HttpClient, headers: Headers = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._headers = headers
        self._clock = clock
        self._after = "0"
        self._lines: list[bytes] = []
        self._shift = ClockShift()
        self.missed = Missed()

    async def skip(self) -> None:
        """Start after the newest timeline that is kept now."""
        await self._page("limit=1")

    async def fetch(self) -> None:
        """Download new timelines before the gateway drops them; `read` returns them.

        Lines are parsed only then, so that this blocks the event loop as little as possible.
        """
        more = True
        while more:
            reply = await self._page(f"limit={PAGE_TIMELINES}&after={self._after}")
            more = _header(reply, b"x-phasewise-more") is not None
            self._lines += _lines(reply)
            too_many = max(0, len(self._lines) - MOST_HELD)
            del self._lines[:too_many]
            dropped = int(_header(reply, b"x-phasewise-dropped") or 0) + too_many
            self.missed = replace(self.missed, dropped=self.missed.dropped + dropped)

    @property
    def fetched(self) -> int:
        """How many timelines `read` would return of those downloaded so far."""
        return len(self._lines)

    async def read(self) -> tuple[Timeline, ...]:
        """Every timeline since the last call, oldest first."""
        await self.fetch()
        lines, self._lines = self._lines, []
        return _on_our_clock(lines, self._shift)

    async def read_open(self) -> tuple[Timeline, ...]:
        """The running requests as they are now, longest open first; empty if the gateway reports none.

        A request is among them while it is open; once it has ended, `read` returns it.
        """
        reply = await self._ask(OPEN_PATH, f"limit={OPEN_TIMELINES}")
        if reply.status == NOT_FOUND:
            # An older gateway takes this path for a request id that it does not have.
            return ()
        if reply.status != OK:
            raise self._rejected(reply)
        lines = _lines(reply)
        if len(lines) >= OPEN_TIMELINES:
            in_all = int(_header(reply, b"x-phasewise-open") or 0)
            self.missed = replace(self.missed, still_open=max(0, in_all - len(lines)))
        return _on_our_clock(lines, self._shift)

    async def _page(self, query: str) -> Reply:
        reply = await self._ask(PATH, query)
        cursor = _header(reply, b"x-phasewise-next")
        if reply.status != OK or cursor is None:
            raise self._rejected(reply)
        self._after = cursor.decode()
        return reply

    async def _ask(self, path: str, query: str) -> Reply:
        asked_s = self._clock()
        reply = await self._client.fetch("GET", f"{path}?{query}", headers=self._headers)
        answered_s = self._clock()
        if (theirs := _header(reply, b"x-phasewise-now")) is not None:
            self._shift.learn(float(theirs), asked_s, answered_s)
        return reply

    def _rejected(self, reply: Reply) -> UpstreamError:
        return UpstreamError(
            FailureKind.PROTOCOL,
            f"{self._client.base_url}{PATH} answered {reply.status}",
            hint="check that this is a phasewise gateway of this version, and its admin key",
        )


def timelines_in(reply: Reply, asked_s: float, answered_s: float) -> tuple[Timeline, ...]:
    """The timelines of one reply, asked for and answered at these times of our clock."""
    shift = ClockShift()
    if (theirs := _header(reply, b"x-phasewise-now")) is not None:
        shift.learn(float(theirs), asked_s, answered_s)
    return _on_our_clock(_lines(reply), shift)


def _on_our_clock(lines: Sequence[bytes], shift: ClockShift) -> tuple[Timeline, ...]:
    timelines = (from_record(orjson.loads(line)) for line in lines)
    return tuple(
        replace(timeline, started_unix_s=timeline.started_unix_s - shift.seconds) for timeline in timelines
    )


def _lines(reply: Reply) -> list[bytes]:
    return [line for line in reply.body.splitlines() if line]


def _header(reply: Reply, name: bytes) -> bytes | None:
    return next((value for known, value in reply.headers if known == name), None)
