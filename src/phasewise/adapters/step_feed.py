"""Reads the steps that the recorder in an engine's process hands out, and puts them on our wall clock.

Whose steps these are in terms of requests is left to diagnosis; when to poll is left to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from phasewise.adapters.clock_shift import ClockShift
from phasewise.adapters.http_client import HttpClient
from phasewise.errors import EngineUnreachable, FailureKind, UpstreamError
from phasewise.model.steps import STEP_RECORD_VERSION, EngineStep, FinishedRequest, KvTransfer

PORT_OFFSET = 10_000
PAGE_STEPS = 2_048
"""A page of this many steps is read in some milliseconds, so that nobody waits long for the event loop."""
PAGE_LIMIT_BYTES = 64 * 1024 * 1024

_INSTALL_HINT = "the recorder is in the engine's environment when `phasewise engine install` put it there"


@dataclass(frozen=True, slots=True)
class FeedHeader:
    """Who speaks and what it holds: steps from `oldest_seq` up to, not including, `next_seq`.

    `details` tells whether steps carry token counts (`--enable-logging-iteration-details`).
    """

    recorder: str
    engine: str
    boot: str
    now_unix_s: float
    oldest_seq: int
    next_seq: int
    details: bool


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The steps since the last poll, oldest first, with times on our wall clock.

    `dropped` counts steps that were overwritten before we came. `boot` is the engine's incarnation;
    `restarted` says that it is another one than at the last poll, so that `steps` begin anew.
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
    """Where the recorder of an engine listens unless told otherwise; None where there is no such port."""
    parts = urlsplit(engine_url)
    port = (parts.port or 80) + PORT_OFFSET
    if parts.scheme != "http" or not parts.hostname or port > 65_535:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return urlunsplit((parts.scheme, f"{host}:{port}", "", "", ""))


class StepFeed:
    """Follows one recorder.

    The first poll returns everything it still holds, or, given `since_unix_s` on our clock, only what ended
    at or after that time. A recorder older than that parameter ignores it and returns everything.
    """

    def __init__(
        self, steps_url: str, clock: Callable[[], float] = time.time, *, since_unix_s: float | None = None
    ) -> None:
        self._client = HttpClient(steps_url.rstrip("/").removesuffix("/steps"))
        self._clock = clock
        self._since_unix_s = since_unix_s
        self._boot: str | None = None
        self._next_seq = 0
        self._shift = ClockShift()

    async def peek(self) -> FeedHeader:
        """Who speaks there, without taking any step."""
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
            # Only what comes after a poll of ours can be missed; the ring's past was never ours to see.
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
        # The time asked for is theirs, and how far their clock is from ours the header tells.
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
            if error.kind is not FailureKind.REFUSED:
                raise
            raise EngineUnreachable(
                f"no step recorder answers at {self._client.base_url}", hint=_INSTALL_HINT
            ) from error
        async with reply:
            status = reply.status
            # The recorder reads its clock after the head is out, so the first piece ends the measurement.
            first = await reply.read()
            answered_s = self._clock()
            body = first + await reply.read_all(PAGE_LIMIT_BYTES)
        if status != 200:
            raise UpstreamError(
                FailureKind.PROTOCOL,
                f"{self._client.base_url}/steps answered {status}",
                hint=f"is that the recorder's address? {_INSTALL_HINT}",
            )
        header, steps = parse_steps(body)
        self._shift.learn(header.now_unix_s, asked_s, answered_s)
        return header, steps


def parse_steps(body: bytes) -> tuple[FeedHeader, list[EngineStep]]:
    """Read an answer: a header line, then a line per step, times still on the engine's clock."""
    lines = body.splitlines()
    try:
        records = [orjson.loads(line) for line in lines if line]
        _check_versions(records)
        header, *steps = records
        return _header(header), [_step(record) for record in steps]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise UpstreamError(
            FailureKind.PROTOCOL,
            f"the steps cannot be read ({type(error).__name__})",
            hint=f"is that the recorder's address? {_INSTALL_HINT}",
        ) from error


def _check_versions(records: list[Any]) -> None:
    for record in records:
        if record["v"] != STEP_RECORD_VERSION:
            raise UpstreamError(
                FailureKind.PROTOCOL,
                f"step records of version {record['v']!r} cannot be read, only {STEP_RECORD_VERSION}",
                hint="run `phasewise engine install` again and restart the engine",
            )


def _header(record: Mapping[str, Any]) -> FeedHeader:
    return FeedHeader(
        recorder=record["recorder"],
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
        running=record["running"],
        waiting=record["waiting"],
        kv_usage=record["kv"],
        prompt_tokens=record["prompt_tokens"],
        prompt_requests=record["prompt_requests"],
        decode_tokens=record["decode_tokens"],
        decode_requests=record["decode_requests"],
        preempted=record["preempted"],
        first_tokens=record["first_tokens"],
        engine_index=record["engine"],
        finished=tuple(_finished(item) for item in record["finished"]),
        # Recorders before 0.2 do not tell them, and later ones only where there are some.
        transfers=tuple(KvTransfer(item["s"], item["bytes"]) for item in record.get("transfers", ())),
    )


def _finished(record: Mapping[str, Any]) -> FinishedRequest:
    return FinishedRequest(
        request_id=record["id"],
        reason=record["reason"],
        prompt_tokens=record["prompt_tokens"],
        cached_tokens=record["cached_tokens"],
        output_tokens=record["output_tokens"],
        queue_s=_phase_s(record["queue_s"]),
        prefill_s=_phase_s(record["prefill_s"]),
        decode_s=_phase_s(record["decode_s"]),
        e2e_s=_phase_s(record["e2e_s"]),
        preemptions=record["preemptions"],
    )


def _phase_s(seconds: float | None) -> float:
    # A request that was aborted never reached some phases: not a number, rather than a false zero.
    return nan if seconds is None else seconds


def _shifted(step: EngineStep, shift_s: float) -> EngineStep:
    return replace(step, ended_unix_s=step.ended_unix_s - shift_s) if shift_s else step
