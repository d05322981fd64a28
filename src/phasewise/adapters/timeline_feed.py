"""Reads the timelines that a gateway keeps, each once, and puts them on our wall clock.

What they mean is left to diagnosis; when to read is left to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import orjson

from phasewise.adapters.clock_shift import ClockShift
from phasewise.adapters.http_client import Headers, HttpClient, Reply
from phasewise.errors import FailureKind, UpstreamError
from phasewise.model.timeline import Timeline
from phasewise.model.timeline_record import from_record

PATH = "/phasewise/v1/requests"
PAGE_TIMELINES = 1_000


class TimelineFeed:
    """Follows one gateway: `skip` what it holds now, then `read` what has come since."""

    def __init__(
        self, client: HttpClient, headers: Headers = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._headers = headers
        self._clock = clock
        self._after = 0
        self._shift = ClockShift()

    async def skip(self) -> None:
        """Begin after the newest timeline that is kept now."""
        await self._fetch("limit=1")

    async def read(self) -> tuple[Timeline, ...]:
        """Every timeline since the last call, oldest first."""
        found: list[Timeline] = []
        more = True
        while more:
            reply = await self._fetch(f"limit={PAGE_TIMELINES}&after={self._after}")
            more = _header(reply, b"x-phasewise-more") is not None
            found += [from_record(orjson.loads(line)) for line in reply.body.splitlines() if line]
        return tuple(
            replace(timeline, started_unix_s=timeline.started_unix_s - self._shift.seconds)
            for timeline in found
        )

    async def _fetch(self, query: str) -> Reply:
        asked_s = self._clock()
        reply = await self._client.fetch("GET", f"{PATH}?{query}", headers=self._headers)
        answered_s = self._clock()
        theirs, cursor = _header(reply, b"x-phasewise-now"), _header(reply, b"x-phasewise-next")
        if reply.status != 200 or theirs is None or cursor is None:
            raise UpstreamError(
                FailureKind.PROTOCOL,
                f"{self._client.base_url}{PATH} answered {reply.status}",
                hint="is that a phasewise gateway of this version, and its admin key?",
            )
        self._after = int(cursor)
        self._shift.learn(float(theirs), asked_s, answered_s)
        return reply


def _header(reply: Reply, name: bytes) -> bytes | None:
    return next((value for known, value in reply.headers if known == name), None)
