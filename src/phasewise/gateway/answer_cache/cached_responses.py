"""Serves answers without a worker: stored ones, and those of identical requests under way."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.latency import ttft_s
from phasewise.core.request import GenerationRequest
from phasewise.core.timeline import Part, Timeline
from phasewise.gateway.answer_cache.headers import cache_headers, without_cache_headers
from phasewise.gateway.answer_cache.lookup import CacheEntrance, CacheLookup, Made, ResponseCache
from phasewise.gateway.answer_cache.response_writer import End, ResponseWriter
from phasewise.gateway.answer_cache.single_flight import Flight, Flights
from phasewise.gateway.upstream.call import CLIENT_LEFT, CLIENT_STALLED, SERVED, Call, Ending
from phasewise.gateway.upstream.exchange import Exchange, take_back_cancellation
from phasewise.scheduling import (
    CacheHit,
    CacheMiss,
    Cancelled,
    Failed,
    FollowIdentical,
    IdenticalUnderWay,
    LeaderLost,
    LookAgain,
    LookedUp,
    NotShareable,
    ServeStored,
    Succeeded,
    TimedOut,
)

Lost = LeaderLost | NotShareable | TimedOut
"""Why a follower got nothing of the shared answer."""
REJECTED = "rejected"
"""The reason of a miss for a request that was rejected after its look-up."""
STOP = "stop"
"""The finish reason of an answer that the model ended itself; every stored one did."""
_ENDS_OF_TEXT = frozenset({STOP, "length"})
"""An answer with another finish reason, such as a filter, is not compared with a stored one."""


class CachedResponses:
    """Performs the flow's cache steps. If it `joins`, identical requests share one answer."""

    def __init__(self, cache: ResponseCache, exchange: Exchange, *, joins: bool) -> None:
        self._cache = cache
        self._exchange = exchange
        self._joins = joins
        self.flights = Flights()

    # --- a request's start and end --------------------------------------------------------------------------

    @property
    def entrance(self) -> CacheEntrance:
        """Says what the cache may do for a request that has arrived."""
        return self._cache.entrance

    def leave(self, call: Call, timeline: Timeline) -> None:
        """The request has ended, with any result."""
        if call.follows is not None:
            call.follows.leave()
        if call.leads is not None:
            call.leads.end()
        if call.cache is not None:
            self._cache.leave(call.cache, _made(call, timeline))

    # --- looking for an answer ------------------------------------------------------------------------------

    async def look_up(self, call: Call) -> LookedUp:
        """Find an answer, or begin one that identical requests may follow."""
        lookup = _lookup_of(call)
        # An identical request under way means that the cache had no answer a moment ago.
        outcome: LookedUp | None = self._join(call, lookup)
        if outcome is None and lookup.reads:
            begun_s = time.monotonic()
            try:
                await self._cache.look_up(lookup)
            finally:
                call.timeline.note_look_up(begun_s, time.monotonic())
            if lookup.found is not None:
                outcome = CacheHit(time.monotonic())
        if outcome is None:
            outcome = self._join_or_lead(call, lookup)
        _set_cache_headers(call, lookup)
        return outcome

    def _join_or_lead(self, call: Call, lookup: CacheLookup) -> CacheMiss | IdenticalUnderWay:
        if joined := self._join(call, lookup):
            return joined
        if self._joins and lookup.keeps and lookup.identity is not None:
            priority = call.timeline.request.priority
            call.leads = self.flights.lead(lookup.identity.key, lookup.identity.model, call.client, priority)
        return CacheMiss(time.monotonic())

    def _join(self, call: Call, lookup: CacheLookup) -> IdenticalUnderWay | None:
        if not self._joins or not lookup.reads or lookup.identity is None:
            return None
        call.follows = self.flights.join(lookup.identity.key, call.timeline.request.priority)
        if call.follows is None:
            return None
        # A near match no longer matters.
        looked = lookup.note
        lookup.note = CacheNote(CacheResult.JOINED, look_up_s=looked.look_up_s, embed_s=looked.embed_s)
        return IdenticalUnderWay(time.monotonic())

    def rejected(self, call: Call) -> None:
        """The request is rejected: what was found has not been served."""
        if call.cache is not None and call.cache.result.served and not call.client.started:
            self.record_miss(call)

    def record_miss(self, call: Call) -> None:
        """Record a miss: the request got nothing from the cache."""
        lookup = _lookup_of(call)
        if lookup.identity is not None:
            lookup.note = CacheNote(CacheResult.MISS, REJECTED, look_up_s=lookup.note.look_up_s)
        _set_cache_headers(call, lookup)

    # --- serving what was found -----------------------------------------------------------------------------

    async def perform(
        self, step: ServeStored | FollowIdentical | LookAgain, call: Call
    ) -> tuple[Succeeded | Cancelled | Lost | Failed | LookedUp, Ending]:
        """Perform one step. After Succeeded the client has its answer."""
        lookup = _lookup_of(call)
        client = call.client
        lost = None
        try:
            if isinstance(step, LookAgain):
                outcome = self._join_or_lead(call, lookup)
                _set_cache_headers(call, lookup)
                return outcome, SERVED
            if isinstance(step, ServeStored):
                await self._replay(call, lookup)
            else:
                lost = await self._follow(call, lookup)
        except asyncio.CancelledError:
            if not client.gone:
                raise
            take_back_cancellation()
        if lost is not None:
            return lost, SERVED
        if client.gone or client.left or client.stalled:
            return Cancelled(time.monotonic(), 0), CLIENT_STALLED if client.stalled else CLIENT_LEFT
        return Succeeded(time.monotonic(), 0), SERVED

    async def _replay(self, call: Call, lookup: CacheLookup) -> None:
        stored = lookup.found
        if stored is None:
            raise RuntimeError("there is no stored answer to serve")
        end = End(STOP, stored.stop_reason, stored.prompt_tokens, stored.output_tokens)
        await ResponseWriter(call, stored.model).finish(stored.text, end)

    async def _follow(self, call: Call, lookup: CacheLookup) -> Lost | Failed | None:
        """None once the client has the whole answer."""
        flight = call.follows
        if flight is None:
            raise RuntimeError("there is no identical request to follow")
        writer = ResponseWriter(call, flight.model)
        lost = await _read(flight, call.timeline.request, writer)
        call.follows = None
        flight.leave()
        if lost is None:
            lookup.note = replace(lookup.note, saved_tokens=writer.answer.account.output_tokens)
            return None
        if call.client.started:
            kind = FailureKind.TIMED_OUT if lost is TimedOut else FailureKind.CLOSED
            error = UpstreamError(kind, "the answer of an identical request broke off")
            return self._exchange.broken(error, call)[0]
        lookup.note = replace(lookup.note, result=CacheResult.MISS)
        _set_cache_headers(call, lookup)
        return lost(time.monotonic())


async def _read(flight: Flight, request: GenerationRequest, writer: ResponseWriter) -> type[Lost] | None:
    """Send the shared answer: a stream as it arrives, else all of it once it is complete."""
    sent = 0
    while True:
        answer = flight.answer
        if answer is not None and answer.saw_other_than_text:
            return NotShareable
        if request.stream and answer is not None and len(answer.text_escaped) > sent:
            new = bytes(answer.text_escaped[sent:])
            sent += len(new)
            await writer.send_escaped(new)
        elif flight.ended:
            break
        else:
            try:
                await flight.news(request.arrived_s, request.max_wait_s)
            except TimeoutError:
                return TimedOut
    if answer is None or not answer.complete:
        return LeaderLost
    text = "" if request.stream else answer.text()
    if text is None:
        return NotShareable
    prompt_tokens, output_tokens = answer.account.prompt_tokens, answer.account.output_tokens
    await writer.finish(text, End(answer.finish_reason, answer.stop_reason, prompt_tokens, output_tokens))
    return None


# --- small things -----------------------------------------------------------------------------------------


def _lookup_of(call: Call) -> CacheLookup:
    if call.cache is None:
        raise RuntimeError("this request has no cache look-up")
    return call.cache


def _set_cache_headers(call: Call, lookup: CacheLookup) -> None:
    """Set the response headers that report the cache result."""
    call.reply_headers = [*without_cache_headers(call.reply_headers), *cache_headers(lookup.note)]


def _made(call: Call, timeline: Timeline) -> Made | None:
    """The request's own answer, if it is complete."""
    lookup, answer = _lookup_of(call), call.timeline.answer
    if lookup.identity is None or not lookup.keeps or answer is None or not answer.complete:
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
    """The client's waits for the first token and for the rest; without a stream, as the engine reports."""
    first_s = ttft_s(timeline)
    if first_s is not None:
        return first_s, (timeline.finished_s or timeline.ended_s) - first_s
    serving = timeline.serving_attempt
    decodes = [] if serving is None else [it.duration_s for it in serving.spans if it.part is Part.DECODE]
    return (timeline.ended_s - decodes[0], decodes[0]) if decodes else (None, None)
