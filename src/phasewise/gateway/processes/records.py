"""The requests of all processes of a gateway, ended and open, as if one process had served them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import field
from urllib.parse import quote, urlencode

from phasewise.clients.http_client import Reply
from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.value import value
from phasewise.gateway.processes.peers import Peers
from phasewise.gateway.records.timeline_store import LOOKED_AT, Page, TimelineStore, slowest
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


@value
class RecordLine:
    """A request as JSON, with its number in the process that served it."""

    ended_unix_s: float
    process: int
    number: int
    text: bytes


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

    @property
    def cursor(self) -> str:
        """One number of a process that has never had another beside it, else one of each."""
        if self.ends.keys() == {0}:
            return str(self.ends[0])
        return "_".join(f"{process}-{number}" for process, number in sorted(self.ends.items()))

    def headers(self) -> Headers:
        """What a client needs to continue."""
        headers = [(_NEXT, self.cursor.encode())]
        if self.more:
            headers.append((_MORE, b"1"))
        if self.dropped:
            headers.append((_DROPPED, b"%d" % self.dropped))
        return headers


class AllRecords:
    """Asks the other processes and adds its own; `alone` leaves the others out."""

    def __init__(self, timelines: TimelineStore, open_requests: OpenRequests, peers: Peers) -> None:
        self.capacity = timelines.capacity
        self._timelines = timelines
        self._open = open_requests
        self._peers = peers

    async def request(self, any_id: str, *, or_open: bool = False, alone: bool = False) -> bytes | None:
        """One that has ended, or with `or_open` is still under way."""
        line = self._timelines.get(any_id)
        if line is None and or_open:
            line = self._open.line(any_id, time.monotonic())
        if line is not None or alone:
            return line
        path = f"{PATH}/{quote(any_id, safe='')}{'?open=1' if or_open else ''}"
        replies = await self._peers.ask_all("GET", path)
        return next((reply.body for reply in replies.values()), None)

    async def newest(self, limit: int, tenant: str | None = None, *, alone: bool = False) -> FoundRequests:
        """The last ones."""
        own = self._own(self._timelines.newest(limit, tenant))
        query = {"limit": limit} if tenant is None else {"limit": limit, "tenant": tenant}
        found = own if alone else await self._with_others(own, PATH, query)
        return FoundRequests(found.lines[-limit:] if limit else [], found.ends)

    async def matching(self, any_id: str, limit: int, *, alone: bool = False) -> FoundRequests:
        """All that an id can mean."""
        own = self._own(await self._timelines.matching(any_id, limit))
        found = own if alone else await self._with_others(own, PATH, {"id": any_id, "limit": limit})
        lines = found.lines[-limit:] if limit else []
        return FoundRequests(lines, found.ends, found.more or len(lines) < len(found.lines))

    async def slowest(
        self, measure: str, limit: int, tenant: str | None, *, alone: bool = False
    ) -> FoundRequests:
        """The slowest of those that are kept, slowest first."""
        newest = self._timelines.newest(LOOKED_AT, tenant).lines
        texts = await slowest(newest, measure, limit)
        own = FoundRequests([RecordLine(0.0, 0, 0, text) for text in texts], of=len(newest))
        if alone or not self._peers.others:
            return own
        query = {"slowest": measure, "limit": limit} | ({} if tenant is None else {"tenant": tenant})
        found = await self._with_others(own, PATH, query)
        texts = await slowest(found.texts, measure, limit)
        return FoundRequests([RecordLine(0.0, 0, 0, text) for text in texts], of=found.of)

    async def after(
        self, cursor: str, limit: int, since_unix_s: float, *, alone: bool = False
    ) -> FoundRequests:
        """The first ones after a cursor, an empty one for the oldest, that ended at or after a time."""
        after = self._after(cursor)
        own = self._own(self._timelines.page(limit, after.get(self._peers.process, 0), since_unix_s))
        query = {"after": cursor or "0", "limit": limit, "since_unix_s": since_unix_s}
        found = own if alone else await self._with_others(own, PATH, query)
        taken, left = found.lines[:limit], found.lines[limit:]
        # Of a process that did not answer in time, nothing is skipped.
        others = [] if alone else self._peers.others
        silent = {process: after[process] for process in others if process in after}
        ends = {**silent, **found.ends}
        for line in reversed(left):
            # The next page begins with the first that was left.
            ends[line.process] = line.number - 1
        return FoundRequests(taken, ends, found.more or bool(left), found.dropped)

    async def open(self, limit: int, *, alone: bool = False) -> FoundRequests:
        """Those under way, the oldest of each process first."""
        ids, texts = self._open.oldest(limit), list[bytes | None]()
        for first in range(0, len(ids), OPEN_AT_ONCE):
            now_s = time.monotonic()
            texts += [self._open.line(request_id, now_s) for request_id in ids[first : first + OPEN_AT_ONCE]]
            await asyncio.sleep(0)
        lines = [RecordLine(0.0, 0, 0, text) for text in texts if text is not None]
        own = FoundRequests(lines, of=len(self._open))
        found = own if alone else await self._with_others(own, f"{PATH}/open", {"limit": limit})
        return FoundRequests(found.lines[:limit], of=found.of)

    def _own(self, page: Page) -> FoundRequests:
        process = self._peers.process
        lines = [
            RecordLine(ended_unix_s, process, number, text)
            for text, (number, ended_unix_s) in zip(page.lines, page.places, strict=True)
        ]
        return FoundRequests(lines, {process: page.next_after}, page.more, page.dropped)

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

    async def _with_others(self, own: FoundRequests, path: str, query: Mapping[str, object]) -> FoundRequests:
        """The same question to all others, and all lines in the order of their ends."""
        replies = await self._peers.ask_all("GET", f"{path}?{urlencode(query)}")
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


# --- What goes from process to process: each line with its number and its end before it.


def answer_of(found: FoundRequests) -> tuple[Headers, bytes]:
    """The head and the body of an answer to another process."""
    lines = (b"%d %.6f %b" % (line.number, line.ended_unix_s, line.text) for line in found.lines)
    return (*found.headers(), (_OF, b"%d" % found.of)), b"\n".join(lines)


def _read(process: int, reply: Reply) -> FoundRequests:
    headers = dict(reply.headers)
    lines = []
    for line in reply.body.split(b"\n") if reply.body else ():
        number, ended_unix_s, text = line.split(b" ", 2)
        lines.append(RecordLine(float(ended_unix_s), process, int(number), text))
    _, _, end = headers.get(_NEXT, b"").partition(b"-")
    ends = {process: int(end)} if end else {}
    return FoundRequests(
        lines, ends, _MORE in headers, int(headers.get(_DROPPED, 0)), int(headers.get(_OF, 0))
    )
