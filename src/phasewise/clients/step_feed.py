"""Reads an engine's steps from the recorder in its process, or from the requests that it lists.

Times are converted to our wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from phasewise.clients.http_client import HttpClient, Timeouts, origin
from phasewise.core.errors import EngineUnreachable, FailureKind, UpstreamError
from phasewise.core.steps import (
    ENDED_AS_NAMED,
    ENDED_PHASES,
    RECORDED_AS_NAMED,
    STEP_RECORD_VERSION,
    EngineStep,
    FinishedRequest,
    KvTransfer,
)
from phasewise.engines.listed_requests import ReadListing, StepsFromListings
from phasewise.engines.port import Engine

# --- How far another host's wall clock is from ours, learned from exchanges with it.


@dataclass(slots=True)
class ClockShift:
    """Seconds to subtract from their times to get ours; 0 until an exchange shows otherwise."""

    seconds: float = 0.0

    def learn(self, theirs_s: float, asked_s: float, answered_s: float) -> None:
        """They read their clock between our question and their answer.

        A shift that is still possible is kept, so that noise does not move times.
        """
        seen_s = theirs_s - (asked_s + answered_s) / 2
        if abs(seen_s - self.seconds) > (answered_s - asked_s) / 2:
            self.seconds = seen_s


PORT_OFFSET = 10_000
PAGE_STEPS = 2_048
"""A page of this many steps takes some milliseconds to read, so that it does not block the event loop."""
PAGE_LIMIT_BYTES = 64 * 1024 * 1024
TIMEOUTS = Timeouts(connect_s=2.0, head_s=5.0, idle_s=5.0)
"""A recorder answers in milliseconds. At a guessed address anything may listen, and never answer."""

_INSTALL_HINT = "`phasewise engine install` adds the recorder to the engine's environment"


@dataclass(frozen=True, slots=True)
class FeedHeader:
    """Which engine this is and what it holds: steps from `oldest_seq` up to, not including, `next_seq`.

    `details` says whether steps carry token counts (a setting of the engine).
    """

    engine: str
    boot: str
    now_unix_s: float
    oldest_seq: int
    next_seq: int
    details: bool


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The steps since the last poll, oldest first, with times on our wall clock.

    `dropped` counts steps that were overwritten before we read them. `boot` is the engine's incarnation;
    `restarted` says that it differs from the last poll's, so that `steps` begin again.
    """

    boot: str
    engine: str
    steps: tuple[EngineStep, ...]
    next_seq: int
    dropped: int
    details: bool
    clock_shift_s: float
    restarted: bool


def default_steps_url(engine_url: str) -> str | None:
    """Where an engine's recorder listens by default; None if that port would be invalid."""
    parts = urlsplit(engine_url)
    port = (parts.port or 80) + PORT_OFFSET
    if parts.scheme != "http" or not parts.hostname or port > 65_535:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return urlunsplit((parts.scheme, f"{host}:{port}", "", "", ""))


class StepFeed:
    """Follows one recorder.

    The first poll returns everything it still holds or, with `since_unix_s` on our clock, only what ended
    at or after that time. An older recorder ignores that parameter and returns everything.
    """

    def __init__(
        self, steps_url: str, clock: Callable[[], float] = time.time, *, since_unix_s: float | None = None
    ) -> None:
        self._client = HttpClient(origin(steps_url).removesuffix("/steps"), TIMEOUTS)
        self._clock = clock
        self._since_unix_s = since_unix_s
        self._boot: str | None = None
        self._next_seq = 0
        self._shift = ClockShift()

    async def peek(self) -> FeedHeader:
        """The header alone, without any step."""
        header, _ = await self._page(0, limit=0)
        return header

    async def poll(self) -> StepBatch:
        """Everything since the last poll."""
        is_first = self._boot is None
        header, page = await (self._first_page() if is_first else self._page(self._next_seq))
        restarted = not is_first and header.boot != self._boot
        if restarted:
            header, page = await self._page(0)
        since = self._next_seq
        if is_first or restarted:
            # Only steps after our first poll can be missed.
            since = page[0].seq if page else header.next_seq
        steps = list(page)
        end_seq = header.next_seq
        while steps and steps[-1].seq + 1 < end_seq:
            later, page = await self._page(steps[-1].seq + 1)
            if later.boot != header.boot or not page:
                break
            steps += page
        next_seq = steps[-1].seq + 1 if steps else max(since, header.oldest_seq)
        self._boot, self._next_seq = header.boot, next_seq
        return StepBatch(
            boot=header.boot,
            engine=header.engine,
            steps=tuple(_shifted(step, self._shift.seconds) for step in steps),
            next_seq=next_seq,
            dropped=next_seq - since - len(steps),
            details=header.details,
            clock_shift_s=self._shift.seconds,
            restarted=restarted,
        )

    def close(self) -> None:
        """Drop the connection."""
        self._client.close()

    async def _first_page(self) -> tuple[FeedHeader, list[EngineStep]]:
        if self._since_unix_s is None:
            return await self._page(0)
        # The parameter is on their clock, and the header shows how far that is from ours.
        await self._page(0, limit=0)
        return await self._page(0, since_unix_s=max(self._since_unix_s + self._shift.seconds, 0.0))

    async def _page(
        self, since: int, *, limit: int | None = None, since_unix_s: float | None = None
    ) -> tuple[FeedHeader, list[EngineStep]]:
        path = f"/steps?since={since}&limit={PAGE_STEPS if limit is None else limit}"
        if since_unix_s is not None:
            path += f"&since_unix_s={since_unix_s:.6f}"
        asked_s = self._clock()
        try:
            reply = await self._client.send("GET", path)
        except UpstreamError as error:
            if error.kind is not FailureKind.CONNECTION_REFUSED:
                raise
            raise EngineUnreachable(
                f"no step recorder answers at {self._client.base_url}", hint=_INSTALL_HINT
            ) from error
        async with reply:
            status = reply.status
            # The recorder reads its clock after it sent the head, so the first piece ends the measurement.
            first = await reply.read()
            answered_s = self._clock()
            body = first + await reply.read_all(PAGE_LIMIT_BYTES)
        if status != 200:
            raise UpstreamError(
                FailureKind.PROTOCOL,
                f"{self._client.base_url}/steps answered {status}",
                hint=f"check that this is the recorder's address; {_INSTALL_HINT}",
            )
        header, steps = parse_steps(body)
        self._shift.learn(header.now_unix_s, asked_s, answered_s)
        return header, steps


def parse_steps(body: bytes) -> tuple[FeedHeader, list[EngineStep]]:
    """Read a reply: a header line, then a line per step, with times still on the engine's clock."""
    lines = body.splitlines()
    try:
        records = [orjson.loads(line) for line in lines if line]
        for record in records:
            if record["v"] != STEP_RECORD_VERSION:
                raise UpstreamError(
                    FailureKind.PROTOCOL,
                    f"step records of version {record['v']!r} are not supported, only {STEP_RECORD_VERSION}",
                    hint="run `phasewise engine install` again and restart the engine",
                )
        header, *steps = records
        return _header(header), [_step(record) for record in steps]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise UpstreamError(
            FailureKind.PROTOCOL,
            f"the steps cannot be read ({type(error).__name__})",
            hint=f"check that this is the recorder's address; {_INSTALL_HINT}",
        ) from error


def _header(record: Mapping[str, Any]) -> FeedHeader:
    return FeedHeader(
        engine=record["engine"],
        boot=record["boot"],
        now_unix_s=record["now_unix_s"],
        oldest_seq=record["oldest"],
        next_seq=record["next"],
        details=record["details"],
    )


def _step(record: Mapping[str, Any]) -> EngineStep:
    return EngineStep(
        seq=record["seq"],
        ended_unix_s=record["at"],
        kv_usage=record["kv"],
        engine_index=record["engine"],
        finished=tuple(_finished(item) for item in record["finished"]),
        # Recorders before 0.2 omit them; later ones send them only where there are some.
        transfers=tuple(KvTransfer(item["s"], item["bytes"]) for item in record.get("transfers", ())),
        **{name: record[name] for name in RECORDED_AS_NAMED},
    )


def _finished(record: Mapping[str, Any]) -> FinishedRequest:
    named = {name: record[name] for name in ENDED_AS_NAMED}
    # An aborted request never reached some phases: NaN, as zero would be false.
    named |= {name: nan if record[name] is None else record[name] for name in ENDED_PHASES}
    return FinishedRequest(request_id=record["id"], **named)


def _shifted(step: EngineStep, shift_s: float) -> EngineStep:
    return replace(step, ended_unix_s=step.ended_unix_s - shift_s) if shift_s else step


# --- Steps of an engine without a recorder, from what it lists.


class ListingFeed:
    """Follows one engine that lists the requests it computes; read many times a second."""

    def __init__(self, client: HttpClient, engine: Engine) -> None:
        self._client = client
        self._engine = engine
        self._steps = StepsFromListings()

    async def poll(self, waiting: int | None) -> tuple[EngineStep, ...] | None:
        """The steps since the last poll; None if it lists nothing. `waiting` requests have no slot."""
        asked_s = time.time()
        try:
            reply = await self._client.fetch("GET", self._engine.LISTING_PATH or "/")
        except UpstreamError:
            return None
        listing = self._engine.parse_listing(reply.body) if reply.status == 200 else None
        if listing is None:
            return None
        return self._steps.add(ReadListing(listing, asked_s, time.time(), waiting))
