"""`phasewise requests`: the requests that a gateway has finished, or serves now, as a list."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlencode

import orjson
import typer
from rich.text import Text

from phasewise.cli.options import AdminKey
from phasewise.cli.targets import ask, gateway_address
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
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import find_admin_key
from phasewise.report.console import out
from phasewise.report.request.list_view import record, render, shown_ids
from phasewise.report.request.words import short_id


class Figure(StrEnum):
    """The figures that requests are ranked by."""

    TTFT = "ttft"
    TPOT = "tpot"
    STALL = "stall"
    E2E = "e2e"


_NAMES = {Figure.TTFT: "TTFT", Figure.TPOT: "TPOT", Figure.STALL: "stall", Figure.E2E: "total time"}
_SECONDS = {Figure.TTFT: ttft_s, Figure.TPOT: tpot_s, Figure.STALL: longest_stall_s, Figure.E2E: took_s}
_WHO_HAS_NONE = {
    Figure.TTFT: "only streamed answers with content have one",
    Figure.TPOT: "only streamed answers of two or more tokens that ended well have one",
    Figure.STALL: "no gap between chunks was four times its stream's median and at least 50 ms",
    Figure.E2E: "only requests that generate text have one",
}


class Ended(StrEnum):
    """How a finished request may have ended."""

    OK = "ok"
    SUCCEEDED = Outcome.SUCCEEDED
    FAILED = Outcome.FAILED
    CANCELLED = Outcome.CANCELLED
    TIMED_OUT = Outcome.TIMED_OUT
    REJECTED = Outcome.REJECTED


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
class Asked:
    """Which requests are asked for. Those that ran at any time from `since_s` to `until_s` count."""

    slowest: Figure | None
    tenant: str | None
    limit: int
    since_s: float | None
    until_s: float | None
    outcome: Ended | None
    running: bool

    @property
    def filters(self) -> bool:
        """Whether the gateway cannot choose them by itself."""
        return any(it is not None for it in (self.since_s, self.until_s, self.outcome))

    def choose(self, timelines: Sequence[Timeline]) -> list[Timeline]:
        """Those that are asked for, in the order asked for."""
        fit = [it for it in timelines if self._fits(it)]
        if self.slowest is None:
            return sorted(fit, key=lambda it: -it.started_unix_s)[: self.limit]
        seconds_of = _SECONDS[self.slowest]
        timed = [(seconds, it) for it in fit if it.generates and (seconds := seconds_of(it)) is not None]
        return [it for _, it in sorted(timed, key=lambda pair: -pair[0])][: self.limit]

    def _fits(self, it: Timeline) -> bool:
        return (
            (self.tenant is None or it.tenant == self.tenant)
            and (self.outcome is None or it.outcome.value == self.outcome.value or self._is_ok(it))
            and (self.since_s is None or it.started_unix_s + it.ended_s >= self.since_s)
            and (self.until_s is None or it.started_unix_s <= self.until_s)
        )

    def _is_ok(self, it: Timeline) -> bool:
        return self.outcome is Ended.OK and it.outcome is Outcome.SUCCEEDED


def requests(
    gateway: Annotated[
        str | None,
        typer.Argument(
            metavar="[GATEWAY]",
            help="The gateway's address, its fleet file or its gateway file. (default: the one that runs "
            "here)",
            show_default=False,
        ),
    ] = None,
    slowest: Annotated[
        Figure | None,
        typer.Option(help="Rank by this figure, the longest first. (default: the newest first)"),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only requests of this tenant.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only requests that ran at or after this time: 14:02, 14:02:30, 2026-01-31T14:02 (local "
            "time), or an age such as 15m. A time of day that is yet to come is yesterday's.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only requests that arrived at or before this time.")
    ] = None,
    outcome: Annotated[Ended | None, typer.Option(help="Only requests that ended so.")] = None,
    running: Annotated[
        bool, typer.Option("--running", help="List the requests that run now instead.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=2_000, help="How many to list at most.")] = 20,
    admin_key: AdminKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """List the requests that a gateway has finished, the newest or the slowest first.

    A gateway keeps its last requests in memory (`gateway.keep_timelines`); --slowest and --tenant search the
    newest 10,000 of them. `phasewise explain ID` shows where the time of one of them went.
    """
    if running and outcome is not None:
        raise UsageError("--running was given together with --outcome", hint="give one of them")
    since_s, until_s = moment_in(since), moment_in(until, may_come=True)
    if since_s is not None and until_s is not None and since_s > until_s:
        raise UsageError(
            f"--since {since} is later than --until {until}",
            hint="swap them; a time of day that is yet to come is yesterday's for --since",
        )
    asked = Asked(slowest, tenant, limit, since_s, until_s, outcome, running)
    home = phasewise_home(os.environ)
    url = gateway_address(gateway, home, "the gateway's address")
    admin_key = admin_key or find_admin_key(url, home)
    found = asyncio.run(_found(url, admin_key, asked))
    if as_json:
        typer.echo(orjson.dumps({"requests": [record(it) for it in found]}).decode())
    elif found:
        order = "newest first" if slowest is None else f"longest {_NAMES[slowest]} first"
        what = "running" if running else "finished"
        out.print(render(found, f"{what} requests, {order}", out.width, slowest))
        if not running:
            first, shown = short_id(found[0].request_id), shown_ids(found)[0]
            which = "the first" if shown == first else f"the first, {shown}"
            out.print(Text(f"Explain {which}: `{explain_command(first, gateway)}`"), soft_wrap=True)
    else:
        out.print(Text(asyncio.run(_why_none(url, admin_key, asked))), soft_wrap=True)


def explain_command(request_id: str, gateway: str | None) -> str:
    """The command that explains a request of this gateway."""
    return f"phasewise explain {request_id}" + ("" if gateway is None else f" --gateway {gateway}")


async def _found(url: str, admin_key: str | None, asked: Asked) -> list[Timeline]:
    if asked.running:
        return asked.choose(await read_running(url, admin_key))
    if asked.filters:
        return asked.choose(await _all_kept(url, admin_key))
    ranked = await read_requests(
        url, admin_key, slowest=asked.slowest, tenant=asked.tenant, limit=asked.limit
    )
    # They come in the order of their ends, and the list shows when they arrived.
    return asked.choose(ranked)


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


async def _why_none(url: str, admin_key: str | None, asked: Asked) -> str:
    """Why nothing is listed, in words."""
    if asked.running:
        return f"no request to list: none that fits runs at {url} now."
    slowest, tenant = asked.slowest, asked.tenant
    if asked.filters and await read_requests(url, admin_key, limit=1):
        return f"no request to list: none that {url} keeps fits all options."
    if slowest is not None and await read_requests(url, admin_key, tenant=tenant, limit=1):
        return f"no request to list: none that {url} keeps has a {_NAMES[slowest]}; {_WHO_HAS_NONE[slowest]}."
    if tenant is not None and await read_requests(url, admin_key, limit=1):
        return f"no request to list: none that {url} keeps is of tenant {tenant}."
    running = dict(checked(await ask(url, "GET", f"{OPEN_PATH}?limit=0", admin_key), url).headers)
    still = int(running.get(b"x-phasewise-open", 0))
    waits = f" {counted(still, 'request')} still running; --running lists them." if still else ""
    return f"no request to list: none has finished since {url} was started.{waits}"
