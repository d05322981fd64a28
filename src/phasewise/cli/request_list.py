"""`phasewise explain --list`: the requests that a gateway has finished, or serves now."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from urllib.parse import urlencode

from rich.text import Text

from phasewise.api.targets import ask
from phasewise.cli.options import print_json
from phasewise.clients.http_client import Reply
from phasewise.clients.timeline_feed import (
    MOST_HELD,
    OPEN_PATH,
    OPEN_TIMELINES,
    PAGE_TIMELINES,
    PATH,
    timelines_in,
)
from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.latency import longest_stall_s, took_s, tpot_s, ttft_s
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import counted
from phasewise.report.console import out
from phasewise.report.request.text import record, render_list, shown_ids
from phasewise.report.request.words import short_id


class RankedBy(StrEnum):
    """The figures that requests are ranked by."""

    TTFT = "ttft"
    TPOT = "tpot"
    STALL = "stall"
    E2E = "e2e"


_RANKS: dict[RankedBy, tuple[str, Callable[[Timeline], float | None], str]] = {
    RankedBy.TTFT: ("TTFT", ttft_s, "only streamed answers with content have one"),
    RankedBy.TPOT: (
        "TPOT",
        tpot_s,
        "only streamed answers of two or more tokens that ended well have one",
    ),
    RankedBy.STALL: (
        "stall",
        longest_stall_s,
        "no gap between chunks was four times its stream's median and at least 50 ms",
    ),
    RankedBy.E2E: ("total time", took_s, "only requests that generate text have one"),
}
"""The name of each figure, how it is read, and who has none."""


class ListedOutcome(StrEnum):
    """The outcomes that the list shows, under the names that it shows."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    RUNNING = "running"


_OUTCOMES = {ListedOutcome.OK: Outcome.SUCCEEDED, ListedOutcome.RUNNING: Outcome.UNFINISHED}
"""The outcomes that are listed under another name."""

_AGES = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def moment_in(text: str | None, *, may_come: bool = False) -> float | None:
    """The time that somebody typed, in Unix seconds: an age, a time of day, or a date.

    A time of day that is yet to come is yesterday's, unless it `may_come`.
    """
    if text is None:
        return None
    now = datetime.now().astimezone()
    if age := re.fullmatch(r"([0-9]{1,6})([smhd])", text):
        return now.timestamp() - int(age[1]) * _AGES[age[2]]
    try:
        if "-" in text:
            return datetime.fromisoformat(text).astimezone().timestamp()
        clock = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M")
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is no time", hint="give 14:02, 14:02:30, 2026-01-31T14:02, or an age such as 15m or 2h"
        ) from None
    at = now.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0)
    return (at if at <= now or may_come else at - timedelta(days=1)).timestamp()


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The requests to list: those that ran at any time from `since_s` to `until_s` and meet the rest."""

    slowest: RankedBy | None
    tenant: str | None
    outcome: ListedOutcome | None
    since_s: float | None
    until_s: float | None
    limit: int

    @property
    def running(self) -> bool:
        """Whether requests are listed that have not ended."""
        return self.outcome is ListedOutcome.RUNNING

    @property
    def needs_all(self) -> bool:
        """Whether the gateway cannot choose the requests by itself, because it knows only tenant and rank."""
        return (self.since_s, self.until_s, self.outcome) != (None, None, None)

    def choose(self, timelines: Sequence[Timeline]) -> list[Timeline]:
        """The requests of this query, the slowest or the newest first."""
        fitting = [timeline for timeline in timelines if self._fits(timeline)]
        if self.slowest is None:
            return sorted(fitting, key=lambda timeline: -timeline.started_unix_s)[: self.limit]
        _, seconds_of, _ = _RANKS[self.slowest]
        timed = [
            (seconds, timeline)
            for timeline in fitting
            if timeline.generates and (seconds := seconds_of(timeline)) is not None
        ]
        return [timeline for _, timeline in sorted(timed, key=lambda pair: -pair[0])][: self.limit]

    def _fits(self, timeline: Timeline) -> bool:
        return (
            (self.tenant is None or timeline.tenant == self.tenant)
            and (self.outcome is None or timeline.outcome == _OUTCOMES.get(self.outcome, self.outcome))
            and (self.since_s is None or timeline.started_unix_s + timeline.ended_s >= self.since_s)
            and (self.until_s is None or timeline.started_unix_s <= self.until_s)
        )


def list_query(
    slowest: RankedBy | None,
    tenant: str | None,
    outcome: ListedOutcome | None,
    since: str | None,
    until: str | None,
    limit: int,
) -> ListQuery:
    """The query of these options; UsageError for times that are none or the wrong way round."""
    since_s, until_s = moment_in(since), moment_in(until, may_come=True)
    if since_s is not None and until_s is not None and since_s > until_s:
        raise UsageError(
            f"--since {since} is later than --until {until}",
            hint="swap them; a time of day that is yet to come is yesterday's for --since",
        )
    return ListQuery(slowest, tenant, outcome, since_s, until_s, limit)


def list_requests(
    query: ListQuery, gateway: str | None, url: str, admin_key: str | None, *, as_json: bool
) -> None:
    """Print the requests of a query; `gateway` is how the user named the one at this URL."""
    found = asyncio.run(_found(url, admin_key, query))
    if as_json:
        print_json({"requests": [record(timeline) for timeline in found]})
    elif found:
        order = "newest first" if query.slowest is None else f"longest {_RANKS[query.slowest][0]} first"
        what = "running" if query.running else "finished"
        out.print(render_list(found, f"{what} requests, {order}", out.width, query.slowest))
        if not query.running:
            first, shown = short_id(found[0].request_id), shown_ids(found)[0]
            which = "the first" if shown == first else f"the first, {shown}"
            out.print(Text(f"Explain {which}: `{explain_command(first, gateway)}`"), soft_wrap=True)
    else:
        out.print(Text(asyncio.run(_why_none(url, admin_key, query))), soft_wrap=True)


def explain_command(request_id: str, gateway: str | None) -> str:
    """The command that explains a request of this gateway."""
    return f"phasewise explain {request_id}" + ("" if gateway is None else f" --gateway {gateway}")


async def _found(url: str, admin_key: str | None, query: ListQuery) -> list[Timeline]:
    if query.running:
        return query.choose(await read_running(url, admin_key))
    if query.needs_all:
        return query.choose(await _all_kept(url, admin_key))
    ranked = await read_requests(
        url, admin_key, slowest=query.slowest, tenant=query.tenant, limit=query.limit
    )
    # They come in the order of their ends, and the list shows when they arrived.
    return query.choose(ranked)


async def read_requests(url: str, admin_key: str | None, **asked: object) -> tuple[Timeline, ...]:
    """The finished requests that a gateway gives for this query, on our clock."""
    return (await _read(url, admin_key, PATH, **asked))[0]


async def read_running(url: str, admin_key: str | None) -> tuple[Timeline, ...]:
    """The requests that run now, on our clock."""
    return (await _read(url, admin_key, OPEN_PATH, limit=OPEN_TIMELINES))[0]


async def _all_kept(url: str, admin_key: str | None) -> list[Timeline]:
    """Every finished request that the gateway keeps."""
    kept: list[Timeline] = []
    after, more = b"0", True
    while more and len(kept) < MOST_HELD:
        page, headers = await _read(url, admin_key, PATH, after=after, limit=PAGE_TIMELINES)
        after, more = headers[b"x-phasewise-next"], b"x-phasewise-more" in headers
        kept += page
    return kept


async def _read(
    url: str, admin_key: str | None, path: str, **asked: object
) -> tuple[tuple[Timeline, ...], dict[bytes, bytes]]:
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    asked_s = time.time()
    reply = checked(await ask(url, "GET", f"{path}?{query}", admin_key), url)
    return timelines_in(reply, asked_s, time.time()), dict(reply.headers)


def checked(reply: Reply, url: str) -> Reply:
    """The reply; an error unless it is a phasewise gateway's."""
    if reply.status != 200:
        raise ConfigError(
            f"{url} answered {reply.status}",
            hint="check that this is a phasewise gateway of the same version",
        )
    return reply


async def _why_none(url: str, admin_key: str | None, query: ListQuery) -> str:
    """Why nothing is listed, in words."""
    if query.running:
        return f"no request to list: none that fits runs at {url} now."
    slowest, tenant = query.slowest, query.tenant
    if query.needs_all and await read_requests(url, admin_key, limit=1):
        return f"no request to list: none that {url} keeps fits all options."
    if slowest is not None and await read_requests(url, admin_key, tenant=tenant, limit=1):
        name, _, who_has_none = _RANKS[slowest]
        return f"no request to list: none that {url} keeps has a {name}; {who_has_none}."
    if tenant is not None and await read_requests(url, admin_key, limit=1):
        return f"no request to list: none that {url} keeps is of tenant {tenant}."
    running = dict(checked(await ask(url, "GET", f"{OPEN_PATH}?limit=0", admin_key), url).headers)
    still = int(running.get(b"x-phasewise-open", 0))
    waits = f" {counted(still, 'request')} still running; --outcome running lists them." if still else ""
    return f"no request to list: none has finished since {url} was started.{waits}"
