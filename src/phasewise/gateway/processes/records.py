"""The requests of all processes of a gateway, ended and open, as if one process had served them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.value import value
from phasewise.gateway.processes.siblings import Question, Siblings
from phasewise.gateway.records.timeline_store import LOOKED_AT, Page, TimelineStore, slowest
from phasewise.gateway.upstream.call import OpenRequests

OPEN_AT_ONCE = 16
"""How many timelines of open requests are built per turn of the event loop."""
_CURSOR = re.compile(r"\d{1,18}|\d{1,3}-\d{1,18}(_\d{1,3}-\d{1,18})*")


@value
class Found:
    """Requests as JSON, oldest first, and the cursor after which to continue.

    `dropped` counts requests after the cursor that newer ones have replaced, `of` those that were looked at.
    """

    lines: list[bytes]
    cursor: str = ""
    more: bool = False
    dropped: int = 0
    of: int = 0


class AllRecords:
    """Asks the other processes and adds its own; without `siblings` it is alone."""

    def __init__(
        self, timelines: TimelineStore, open_requests: OpenRequests, siblings: Siblings | None = None
    ) -> None:
        self.capacity = timelines.capacity
        self._timelines = timelines
        self._open = open_requests
        self._siblings = siblings
        self._answers: dict[str, Callable[[Question], Awaitable[Page]]] = {
            "request": self._own_request,
            "newest": self._own_newest,
            "matching": self._own_matching,
            "slowest": self._own_slowest,
            "page": self._own_page,
            "open": self._own_open,
        }
        if siblings is not None:
            for name in self._answers:
                siblings.answers[name] = self._written

    async def request(self, any_id: str, *, or_open: bool = False) -> bytes | None:
        """One that has ended, or with `or_open` is still under way."""
        found = await self._ask("request", id=any_id, or_open=or_open)
        return next((line for page in found.values() for line in page.lines), None)

    async def newest(self, limit: int, tenant: str | None = None) -> Found:
        """The last ones."""
        pages = await self._ask("newest", limit=limit, tenant=tenant)
        lines = _in_order(pages)[-limit:] if limit else []
        return Found([it.line for it in lines], _cursor(_ends(pages)))

    async def matching(self, any_id: str, limit: int) -> Found:
        """All that an id can mean."""
        pages = await self._ask("matching", id=any_id, limit=limit)
        lines = _in_order(pages)
        more = len(lines) > limit or any(it.more for it in pages.values())
        return Found([it.line for it in lines[-limit:]] if limit else [], _cursor(_ends(pages)), more)

    async def slowest(self, measure: str, limit: int, tenant: str | None) -> Found:
        """The slowest of those that are kept, slowest first."""
        pages = await self._ask("slowest", measure=measure, limit=limit, tenant=tenant)
        lines = [line for page in pages.values() for line in page.lines]
        if len(pages) > 1:
            lines = await slowest(lines, measure, limit)
        return Found(lines, of=sum(it.dropped for it in pages.values()))

    async def after(self, cursor: str, limit: int, since_unix_s: float) -> Found:
        """The first ones after a cursor, an empty one for the oldest, that ended at or after a time."""
        after = _after(cursor, self._column)
        pages = await self._ask("page", after=after, limit=limit, since_unix_s=since_unix_s)
        lines = _in_order(pages)
        taken, left = lines[:limit], lines[limit:]
        ends = _ends(pages)
        for it in reversed(left):
            # The next page begins with the first that was left.
            ends[str(it.column)] = it.number - 1
        more = bool(left) or any(it.more for it in pages.values())
        dropped = sum(it.dropped for it in pages.values())
        # Of a process that did not answer in time, nothing is skipped.
        return Found([it.line for it in taken], _cursor({**after, **ends}), more, dropped)

    async def open(self, limit: int) -> Found:
        """Those under way, the oldest of each process first."""
        pages = await self._ask("open", limit=limit)
        lines = [line for page in pages.values() for line in page.lines]
        return Found(lines[:limit], of=sum(it.dropped for it in pages.values()))

    # --- what this process has --------------------------------------------------------------------------

    async def _own_request(self, asked: Question) -> Page:
        line = self._timelines.get(asked["id"])
        if line is None and asked["or_open"]:
            line = self._open.line(asked["id"], time.monotonic())
        return Page([] if line is None else [line], 0, more=False)

    async def _own_newest(self, asked: Question) -> Page:
        return self._timelines.newest(asked["limit"], asked["tenant"])

    async def _own_matching(self, asked: Question) -> Page:
        return await self._timelines.matching(asked["id"], asked["limit"])

    async def _own_slowest(self, asked: Question) -> Page:
        newest = self._timelines.newest(LOOKED_AT, asked["tenant"]).lines
        lines = await slowest(newest, asked["measure"], asked["limit"])
        return Page(lines, 0, more=False, dropped=len(newest))

    async def _own_page(self, asked: Question) -> Page:
        after = asked["after"].get(str(self._column), 0)
        return self._timelines.page(asked["limit"], after, asked["since_unix_s"])

    async def _own_open(self, asked: Question) -> Page:
        ids, lines = self._open.oldest(asked["limit"]), []
        for first in range(0, len(ids), OPEN_AT_ONCE):
            now_s = time.monotonic()
            lines += [self._open.line(it, now_s) for it in ids[first : first + OPEN_AT_ONCE]]
            await asyncio.sleep(0)
        return Page([it for it in lines if it is not None], 0, more=False, dropped=len(self._open))

    # --- between processes ------------------------------------------------------------------------------

    @property
    def _column(self) -> int:
        return 0 if self._siblings is None else self._siblings.column

    async def _ask(self, name: str, **question: Any) -> dict[int, Page]:  # noqa: ANN401 - plain JSON types
        """The page of each process, by its column; this one's is first."""
        asked = {"ask": name, **question}
        pages = {self._column: await self._answers[name](asked)}
        if self._siblings is not None:
            for column, answer in (await self._siblings.ask_all(name, **question)).items():
                pages[column] = _read(answer)
        return pages

    async def _written(self, asked: Question) -> bytes:
        page = await self._answers[asked["ask"]](asked)
        head = orjson.dumps([page.next_after, page.more, page.dropped, page.places])
        return b"\n".join((head, *page.lines))


def _read(answer: bytes) -> Page:
    head, *lines = answer.split(b"\n")
    next_after, more, dropped, places = orjson.loads(head)
    return Page(lines, next_after, more, dropped, [tuple(it) for it in places])


@value
class _Line:
    ended_unix_s: float
    column: int
    number: int
    line: bytes


def _in_order(pages: dict[int, Page]) -> list[_Line]:
    """The lines of all, in the order of their ends."""
    lines = [
        _Line(ended_unix_s, column, number, line)
        for column, page in pages.items()
        for line, (number, ended_unix_s) in zip(page.lines, page.places, strict=True)
    ]
    return lines if len(pages) == 1 else sorted(lines, key=lambda it: it.ended_unix_s)


def _ends(pages: dict[int, Page]) -> dict[str, int]:
    return {str(column): it.next_after for column, it in pages.items()}


def _cursor(numbers: dict[str, int]) -> str:
    """One number of a process alone, else one for each column."""
    if len(numbers) == 1:
        return str(*numbers.values())
    return "_".join(f"{column}-{number}" for column, number in sorted(numbers.items()))


def _after(cursor: str, own: int) -> dict[str, int]:
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
        return {str(own): int(cursor)}
    return {column: int(number) for column, _, number in (it.partition("-") for it in cursor.split("_"))}
