"""Reads the timelines that a gateway keeps, each once, and puts them on our wall clock.

What they mean is left to diagnosis; when to read is left to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import orjson

from phasewise.adapters.clock_shift import ClockShift
from phasewise.adapters.http_client import Headers, HttpClient, Reply
from phasewise.errors import FailureKind, UpstreamError
from phasewise.model.timeline import Timeline
from phasewise.model.timeline_record import from_record

PATH = "/phasewise/v1/requests"
OPEN_PATH = f"{PATH}/open"
PAGE_TIMELINES = 1_000
OPEN_TIMELINES = 1_000
MOST_HELD = 50_000
"""Beyond this many between two readings the oldest are let go: they would take minutes to look through."""
OK, NOT_FOUND = 200, 404


@dataclass(frozen=True, slots=True)
class Missed:
    """What never reached us: ended requests whose timelines were `dropped`, and the newest of those open."""

    dropped: int = 0
    still_open: int = 0


class TimelineFeed:
    """Follows one gateway: `skip` what it holds now, then `read` what has come since; or see what is open.

    `missed` counts what was not to be had.
    """

    def __init__(
        self, client: HttpClient, headers: Headers = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._headers = headers
        self._clock = clock
        self._after = 0
        self._lines: list[bytes] = []
        self._shift = ClockShift()
        self.missed = Missed()

    async def skip(self) -> None:
        """Begin after the newest timeline that is kept now."""
        await self._page("limit=1")

    async def fetch(self) -> None:
        """Take what has come from the gateway, which forgets it for newer ones; `read` gives it out.

        Lines stay as they are until then: whoever shares our event loop is held up by as little as may be.
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

    async def read(self) -> tuple[Timeline, ...]:
        """Every timeline since the last call, oldest first."""
        await self.fetch()
        lines, self._lines = self._lines, []
        return self._on_our_clock(lines)

    async def read_open(self) -> tuple[Timeline, ...]:
        """The requests under way as they stand, longest open first; none of a gateway that cannot tell.

        A request is among them for as long as it is open; once it has ended, `read` gives it.
        """
        reply = await self._ask(OPEN_PATH, f"limit={OPEN_TIMELINES}")
        if reply.status == NOT_FOUND:
            # A gateway before this address takes it for a request's id, and keeps none of that name.
            return ()
        if reply.status != OK:
            raise self._refused(reply)
        lines = _lines(reply)
        if len(lines) >= OPEN_TIMELINES:
            in_all = int(_header(reply, b"x-phasewise-open") or 0)
            self.missed = replace(self.missed, still_open=max(0, in_all - len(lines)))
        return self._on_our_clock(lines)

    async def _page(self, query: str) -> Reply:
        reply = await self._ask(PATH, query)
        cursor = _header(reply, b"x-phasewise-next")
        if reply.status != OK or cursor is None:
            raise self._refused(reply)
        self._after = int(cursor)
        return reply

    async def _ask(self, path: str, query: str) -> Reply:
        asked_s = self._clock()
        reply = await self._client.fetch("GET", f"{path}?{query}", headers=self._headers)
        answered_s = self._clock()
        if (theirs := _header(reply, b"x-phasewise-now")) is not None:
            self._shift.learn(float(theirs), asked_s, answered_s)
        return reply

    def _refused(self, reply: Reply) -> UpstreamError:
        return UpstreamError(
            FailureKind.PROTOCOL,
            f"{self._client.base_url}{PATH} answered {reply.status}",
            hint="is that a phasewise gateway of this version, and its admin key?",
        )

    def _on_our_clock(self, lines: Sequence[bytes]) -> tuple[Timeline, ...]:
        timelines = (from_record(orjson.loads(line)) for line in lines)
        return tuple(
            replace(timeline, started_unix_s=timeline.started_unix_s - self._shift.seconds)
            for timeline in timelines
        )


def _lines(reply: Reply) -> list[bytes]:
    return [line for line in reply.body.splitlines() if line]


def _header(reply: Reply, name: bytes) -> bytes | None:
    return next((value for known, value in reply.headers if known == name), None)
