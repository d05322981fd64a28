"""The requests of all processes of a gateway, ended and open, as if one process had served them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from phasewise.clients.http_client import Reply
from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.gateway.processes.peers import Peers
from phasewise.gateway.records.timeline_store import (
    LOOKED_AT,
    FoundRequests,
    RecordLine,
    TimelineStore,
    in_turns,
    slowest,
)
from phasewise.gateway.server.client import Headers
from phasewise.gateway.upstream.call import OpenRequests

PATH = "/phasewise/v1/requests"
OPEN_AT_ONCE = 16
"""How many timelines of open requests are built per turn of the event loop."""
_CURSOR = re.compile(r"\d{1,18}|\d{1,9}-\d{1,18}(_\d{1,9}-\d{1,18})*")
_NEXT, _MORE, _DROPPED, _OF = (
    b"x-phasewise-next",
    b"x-phasewise-more",
    b"x-phasewise-dropped",
    b"x-phasewise-of",
)


class AllRecords:
    """Asks the other processes and adds its own."""

    def __init__(self, timelines: TimelineStore, open_requests: OpenRequests, peers: Peers) -> None:
        self.capacity = timelines.capacity
        self._timelines = timelines
        self._open = open_requests
        self._peers = peers

    @property
    def alone(self) -> AllRecords:
        """Those of this process without the others'."""
        return AllRecords(self._timelines, self._open, Peers(process=self._peers.process))

    async def request(self, any_id: str, *, or_open: bool = False) -> bytes | None:
        """One that has ended, or with `or_open` is still under way."""
        line = self._timelines.get(any_id)
        if line is None and or_open:
            line = self._open.line(any_id, time.monotonic())
        if line is not None:
            return line
        path = f"{PATH}/{quote(any_id, safe='')}{'?open=1' if or_open else ''}"
        replies = await self._peers.ask_all("GET", path)
        return next((reply.body for reply in replies.values()), None)

    async def newest(self, limit: int, tenant: str | None = None) -> FoundRequests:
        """The last ones."""
        own = self._timelines.newest(limit, tenant)
        found = await self._with_others(own, PATH, limit=limit, tenant=tenant)
        return FoundRequests(found.lines[max(0, len(found.lines) - limit) :], found.ends)

    async def matching(self, any_id: str, limit: int) -> FoundRequests:
        """All that an id can mean."""
        own = await self._timelines.matching(any_id, limit)
        found = await self._with_others(own, PATH, id=any_id, limit=limit)
        left = max(0, len(found.lines) - limit)
        return FoundRequests(found.lines[left:], found.ends, found.more or left > 0)

    async def slowest(self, measure: str, limit: int, tenant: str | None) -> FoundRequests:
        """The slowest of those that are kept, slowest first."""
        newest = self._timelines.newest(LOOKED_AT, tenant).lines
        own = FoundRequests(await slowest(newest, measure, limit), of=len(newest))
        found = await self._with_others(own, PATH, slowest=measure, limit=limit, tenant=tenant)
        return FoundRequests(await slowest(found.lines, measure, limit), of=found.of)

    async def after(self, cursor: str, limit: int, since_unix_s: float) -> FoundRequests:
        """The first ones after a cursor, an empty one for the oldest, that ended at or after a time."""
        after = self._after(cursor)
        own = self._timelines.page(limit, after.get(self._peers.process, 0), since_unix_s)
        found = await self._with_others(
            own, PATH, after=cursor or "0", limit=limit, since_unix_s=since_unix_s
        )
        taken, left = found.lines[:limit], found.lines[limit:]
        # Of a process that did not answer in time, nothing is skipped.
        silent = {process: after[process] for process in self._peers.others if process in after}
        ends = {**silent, **found.ends}
        for line in reversed(left):
            # The next page begins with the first that was left.
            ends[line.process] = line.number - 1
        return FoundRequests(taken, ends, found.more or bool(left), found.dropped)

    async def open(self, limit: int) -> FoundRequests:
        """Those under way, the oldest of each process first."""
        lines: list[RecordLine] = []
        async for request_id in in_turns(self._open.oldest(limit), OPEN_AT_ONCE):
            if (text := self._open.line(request_id, time.monotonic())) is not None:
                lines.append(RecordLine(text))
        own = FoundRequests(lines, of=len(self._open))
        found = await self._with_others(own, f"{PATH}/open", limit=limit)
        return FoundRequests(found.lines[:limit], of=found.of)

    def _after(self, cursor: str) -> dict[int, int]:
        if not cursor:
            return {}
        if not cursor.isascii() or _CURSOR.fullmatch(cursor) is None:
            raise RequestRejected(
                RejectionKind.BAD_REQUEST,
                "after is not a value of x-phasewise-next",
                param="after",
                hint="leave it out, or begin with 0",
            )
        if "-" not in cursor:
            return {self._peers.process: int(cursor)}
        pairs = (pair.partition("-") for pair in cursor.split("_"))
        return {int(process): int(number) for process, _, number in pairs}

    async def _with_others(self, own: FoundRequests, path: str, **query: str | float | None) -> FoundRequests:
        """The same question to all others, and all lines in the order of their ends."""
        given = {name: asked for name, asked in query.items() if asked is not None}
        replies = await self._peers.ask_all("GET", f"{path}?{urlencode(given)}")
        if not replies:
            return own
        every = [own, *(_read(process, reply) for process, reply in replies.items())]
        return FoundRequests(
            # Those without an end stay as they are.
            sorted((line for found in every for line in found.lines), key=lambda line: line.ended_unix_s),
            {process: number for found in every for process, number in found.ends.items()},
            any(found.more for found in every),
            sum(found.dropped for found in every),
            sum(found.of for found in every),
        )


def headers_of(found: FoundRequests) -> Headers:
    """What a client needs to continue."""
    headers = [(_NEXT, _cursor(found.ends).encode())]
    if found.more:
        headers.append((_MORE, b"1"))
    if found.dropped:
        headers.append((_DROPPED, b"%d" % found.dropped))
    return headers


def _cursor(ends: Mapping[int, int]) -> str:
    """One number of a process that has never had another beside it, else one of each."""
    if ends.keys() == {0}:
        return str(ends[0])
    return "_".join(f"{process}-{number}" for process, number in sorted(ends.items()))


# --- What goes from process to process: each line with its number and its end before it.


def answer_of(found: FoundRequests) -> tuple[Headers, bytes]:
    """The head and the body of an answer to another process."""
    lines = (b"%d %.6f %b" % (line.number, line.ended_unix_s, line.text) for line in found.lines)
    return (*headers_of(found), (_OF, b"%d" % found.of)), b"\n".join(lines)


def _read(process: int, reply: Reply) -> FoundRequests:
    headers = dict(reply.headers)
    lines = []
    for line in reply.body.split(b"\n") if reply.body else ():
        number, ended_unix_s, text = line.split(b" ", 2)
        lines.append(RecordLine(text, float(ended_unix_s), process, int(number)))
    _, _, end = headers.get(_NEXT, b"").partition(b"-")
    ends = {process: int(end)} if end else {}
    return FoundRequests(
        lines, ends, _MORE in headers, int(headers.get(_DROPPED, 0)), int(headers.get(_OF, 0))
    )
