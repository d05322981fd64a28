"""Serves answers that need no worker: kept from before, or under way to somebody who asked the same.

What is kept, and what is near enough to serve, is the desk's to say; sending it is telling.py's. Where
an answer that was joined breaks off, the flow decides how the request goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from phasewise.errors import FailureKind, UpstreamError
from phasewise.gateway.answer import Answer
from phasewise.gateway.cache_headers import cache_headers, without_cache_headers
from phasewise.gateway.cache_turn import AnswerDesk, CacheTurn, Made
from phasewise.gateway.call import CLIENT_LEFT, CLIENT_STALLED, SERVED, Call, Ending
from phasewise.gateway.exchange import Exchange, take_back_cancellation
from phasewise.gateway.flights import Flight, Flights
from phasewise.gateway.replay import Counts, End, pieces_of
from phasewise.gateway.telling import Telling
from phasewise.model.caching import CacheNote, CacheResult, StoredAnswer
from phasewise.model.latency import ttft_s
from phasewise.model.request import Endpoint, GenerationRequest
from phasewise.model.timeline import Part, Timeline
from phasewise.request_flow import CacheHit, CacheMiss, Cancelled, Failed, Succeeded

Served = Succeeded | Failed | Cancelled
REFUSED = "refused"
"""Why a request had nothing of what was found for it."""
STOP = "stop"
"""How an answer ends that the model itself ended; every stored one did."""
_ENDS_OF_TEXT = frozenset({STOP, "length"})
"""Whatever else ends an answer, such as a filter, leaves nothing that a stored one could be compared with."""


class Followed(Enum):
    """What came of waiting for another's answer."""

    WHOLE = auto()
    BROKEN = auto()
    BEYOND_TEXT = auto()
    LATE = auto()
    """No worker had it yet when this request's own time to wait for one was over."""


class FoundAnswers:
    """Performs the flow's steps that have to do with the cache. Where it `joins`, one answer serves many."""

    def __init__(
        self,
        desk: AnswerDesk,
        exchange: Exchange,
        *,
        joins: bool,
        replay_tokens_per_s: float | None = None,
    ) -> None:
        self._desk = desk
        self._exchange = exchange
        self._joins = joins
        self._replay_tokens_per_s = replay_tokens_per_s
        self.flights = Flights()

    # --- the request's way in and out -----------------------------------------------------------------------

    def enter(
        self, endpoint: Endpoint, fields: Mapping[str, Any], headers: Mapping[bytes, bytes], tenant: str
    ) -> CacheTurn:
        """A request has come; raises RequestRefused if its headers ask for what cannot be."""
        return self._desk.enter(endpoint, fields, headers, tenant)

    def leave(self, call: Call, timeline: Timeline) -> None:
        """The request has ended, however it did."""
        if call.follows is not None:
            call.follows.leave()
        if call.leads is not None:
            call.leads.end()
        if call.cache is not None:
            self._desk.leave(call.cache, _made(call, timeline))

    # --- looking for an answer ------------------------------------------------------------------------------

    async def look_up(self, call: Call) -> CacheHit | CacheMiss:
        """Find an answer, or begin one that others may follow."""
        turn = _turn(call)
        found = turn.identity is not None and await self._find(call, turn)
        _tell(call, turn)
        return (CacheHit if found else CacheMiss)(time.monotonic())

    async def _find(self, call: Call, turn: CacheTurn) -> bool:
        # Whoever asks what is being answered need not look for it: it was not there a moment ago.
        if self._join(call, turn):
            return True
        if turn.reads:
            begun_s = time.monotonic()
            try:
                await self._desk.look_up(turn)
            finally:
                call.timeline.note_look_up(begun_s, time.monotonic())
        return turn.found is not None or self._join_or_lead(call, turn)

    def _join_or_lead(self, call: Call, turn: CacheTurn) -> bool:
        if self._join(call, turn):
            return True
        if self._joins and turn.keeps and turn.identity is not None:
            priority = call.timeline.request.priority
            call.leads = self.flights.lead(turn.identity.key, turn.identity.model, call.client, priority)
        return False

    def _join(self, call: Call, turn: CacheTurn) -> bool:
        if not self._joins or not turn.reads or turn.identity is None:
            return False
        call.follows = self.flights.join(turn.identity.key, call.timeline.request.priority)
        if call.follows is None:
            return False
        # Whatever was near is of no matter any more.
        looked = turn.note
        turn.note = CacheNote(CacheResult.JOINED, look_up_s=looked.look_up_s, embed_s=looked.embed_s)
        return True

    def refused(self, call: Call) -> None:
        """The request is refused: whatever was found has not been served."""
        if call.cache is not None and call.cache.result.served and not call.client.started:
            self.turned_away(call)

    def turned_away(self, call: Call) -> None:
        """The request has nothing of the cache, whatever was found or might have been."""
        turn = _turn(call)
        if turn.identity is not None:
            turn.note = CacheNote(CacheResult.MISS, REFUSED, look_up_s=turn.note.look_up_s)
        _tell(call, turn)

    # --- serving what was found -----------------------------------------------------------------------------

    async def serve(self, call: Call) -> tuple[Served, Ending]:
        """Perform one step; the client has been answered unless it failed."""
        turn = _turn(call)
        try:
            if call.follows is not None:
                if failed := await self._follow(call, turn):
                    return failed, SERVED
            elif turn.found is not None:
                await self._replay(call, turn.found)
            else:
                raise RuntimeError("an answer is served that was not found")
        except asyncio.CancelledError:
            if not call.client.gone:
                raise
            take_back_cancellation()
            return Cancelled(time.monotonic(), 0), _leaving(call)
        if call.client.stalled or call.client.left:
            return Cancelled(time.monotonic(), 0), _leaving(call)
        return Succeeded(time.monotonic(), 0), SERVED

    async def _replay(self, call: Call, stored: StoredAnswer) -> None:
        counts = _counts(stored.prompt_tokens, stored.output_tokens)
        telling, end = Telling(call, stored.model), End(STOP, stored.stop_reason)
        if not call.timeline.request.stream:
            await telling.send_whole(stored.text, end, counts)
            return
        pieces = pieces_of(stored.text)
        if self._replay_tokens_per_s is not None and len(pieces) > 1:
            tokens = stored.output_tokens or len(pieces)
            await telling.send_paced(pieces, tokens / len(pieces) / self._replay_tokens_per_s)
        else:
            telling.put(pieces)
        await telling.finish(end, counts)

    # --- following another's answer -------------------------------------------------------------------------

    async def _follow(self, call: Call, turn: CacheTurn) -> Failed | None:
        """None once the client has the whole answer."""
        failure = FailureKind.CLOSED
        while (flight := call.follows) is not None:
            telling = Telling(call, flight.model)
            if call.timeline.request.stream:
                came = await _read_along(flight, telling)
            else:
                came = await _read_whole(flight, telling)
            call.follows = None
            flight.leave()
            if came is Followed.WHOLE:
                turn.note = replace(turn.note, saved_tokens=telling.output_tokens)
                return None
            failure = FailureKind.TIMED_OUT if came is Followed.LATE else FailureKind.CLOSED
            if call.client.started:
                error = UpstreamError(failure, "the answer that was joined broke off")
                return self._exchange.broken(error, call)[0]
            turn.note = replace(turn.note, result=CacheResult.MISS)
            request, now_s = call.timeline.request, time.monotonic()
            # Nobody waits for one failing answer after the other longer than for a place.
            if came is Followed.BROKEN and now_s < request.arrived_s + request.max_wait_s:
                self._join_or_lead(call, turn)
            _tell(call, turn)
        return Failed(time.monotonic(), failure, content_sent=False)


async def _hears(flight: Flight, request: GenerationRequest) -> bool:
    """Wait until something has come. False if by then the request would have waited too long for a worker."""
    since_s = flight.waits_since_s
    if since_s is None:
        await flight.news()
        return True
    until_s = max(since_s, request.arrived_s) + request.max_wait_s
    try:
        async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
            await flight.news()
    except TimeoutError:
        return flight.waits_since_s != since_s
    return True


async def _read_along(flight: Flight, telling: Telling) -> Followed:
    """Send what has come and what comes, piece by piece."""
    sent = 0
    while True:
        ended, answer = flight.ended, flight.answer
        if answer is not None:
            if answer.saw_other_than_text:
                return Followed.BEYOND_TEXT
            if len(answer.text_escaped) > sent:
                new = bytes(answer.text_escaped[sent:])
                sent += len(new)
                await telling.send_escaped(new)
                continue
        if ended:
            break
        if not await _hears(flight, telling.request):
            return Followed.LATE
    if answer is None or not answer.complete:
        return Followed.BROKEN
    await telling.finish(End(answer.finish_reason, answer.stop_reason), _counts_of(answer))
    return Followed.WHOLE


async def _read_whole(flight: Flight, telling: Telling) -> Followed:
    """Wait for the whole answer, and send it."""
    while not flight.ended:
        if flight.answer is not None and flight.answer.saw_other_than_text:
            return Followed.BEYOND_TEXT
        if not await _hears(flight, telling.request):
            return Followed.LATE
    answer = flight.answer
    if answer is None or not answer.complete:
        return Followed.BROKEN
    text = answer.text()
    if text is None:
        return Followed.BEYOND_TEXT
    await telling.send_whole(text, End(answer.finish_reason, answer.stop_reason), _counts_of(answer))
    return Followed.WHOLE


# --- small things -----------------------------------------------------------------------------------------


def _turn(call: Call) -> CacheTurn:
    if call.cache is None:
        raise RuntimeError("a request asks for the cache that has no part in it")
    return call.cache


def _tell(call: Call, turn: CacheTurn) -> None:
    """Say in the reply's head what the request had of the cache."""
    call.reply_headers = [*without_cache_headers(call.reply_headers), *cache_headers(turn.note)]


def _leaving(call: Call) -> Ending:
    return CLIENT_STALLED if call.client.stalled else CLIENT_LEFT


def _counts(prompt_tokens: int | None, output_tokens: int | None) -> Counts | None:
    return None if prompt_tokens is None or output_tokens is None else (prompt_tokens, output_tokens)


def _counts_of(answer: Answer) -> Counts | None:
    return _counts(answer.report.prompt_tokens, answer.report.output_tokens)


def _made(call: Call, timeline: Timeline) -> Made | None:
    """The request's answer, if it was made for it and is all there, whatever it is."""
    turn, answer = _turn(call), call.timeline.answer
    if turn.identity is None or not turn.keeps or answer is None or not answer.complete:
        return None
    text = answer.text() if answer.finish_reason in _ENDS_OF_TEXT else None
    keepable = bool(text) and answer.finish_reason == STOP
    start_s, stream_s = _phases_s(timeline)
    return Made(
        text or "",
        timeline.prompt_tokens,
        timeline.output_tokens,
        start_s,
        stream_s,
        answer.stop_reason,
        keepable,
    )


def _phases_s(timeline: Timeline) -> tuple[float | None, float | None]:
    """What the client waited for its first token, and for the rest; of a plain reply as the engine says."""
    first_s = ttft_s(timeline)
    if first_s is not None:
        return first_s, (timeline.finished_s or timeline.ended_s) - first_s
    serving = timeline.serving_attempt
    decodes = [] if serving is None else [it.duration_s for it in serving.spans if it.part is Part.DECODE]
    return (timeline.ended_s - decodes[0], decodes[0]) if decodes else (None, None)
