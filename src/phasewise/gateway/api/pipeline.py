"""The stages of a generation request, from its head to its record: see `Pipeline.generate`."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.ports import TimelineSink
from phasewise.core.request import Endpoint, GenerationRequest
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.trace_context import TRACEPARENT, TraceContext, trace_of
from phasewise.fleet.config import GatewayConfig
from phasewise.gateway.answer_cache.headers import USUAL, CacheWishes, cache_wishes, with_all_lines
from phasewise.gateway.api.auth import Authenticator, Caller, salted
from phasewise.gateway.api.body_reader import Bodies, BodyReader, Read, Unread
from phasewise.gateway.api.fields import ANTHROPICS, Parsed, no_model, request_id_from, shown_names
from phasewise.gateway.api.forwarded import form_boundary, only_model, parse_form, target
from phasewise.gateway.api.prompt_prefix import Marking, PrefixHashing
from phasewise.gateway.api.reservations import Reservations
from phasewise.gateway.http_errors import send_error, send_rejection
from phasewise.gateway.quarantine import SURE_AFTER_S
from phasewise.gateway.records.server_timing import ASKS_FOR_TIMING
from phasewise.gateway.records.timeline_builder import TimelineBuilder
from phasewise.gateway.server.client import Client, ClientLeft, Headers, Scope, headers_of
from phasewise.gateway.upstream.call import STOPPED, Call, Ending, OpenRequests, Reservation
from phasewise.gateway.upstream.driver import FlowDriver
from phasewise.scheduling import Reject, RequestFlow, World, request_flow

logger = logging.getLogger("phasewise.gateway")

# Looking up a member of an enum is slow.
_FORWARDED = Endpoint.FORWARDED
_OUR_FAULT = Ending(Outcome.FAILED, "gateway_error")


@dataclass(slots=True)
class Arrival:
    """What is known of a request from its head. Every answer to it has `reply_headers`."""

    endpoint: Endpoint
    request_id: str
    client_request_id: str | None
    reply_headers: Headers
    wants_timing: bool
    started_unix_s: float
    started_s: float
    trace: TraceContext | None
    stage_ends_s: list[float] = field(default_factory=list)

    def end_stage(self) -> None:
        """Its limits, the reading of its body or parsing has ended, in this order."""
        self.stage_ends_s.append(time.monotonic())

    @classmethod
    def of(cls, endpoint: Endpoint, headers: dict[bytes, bytes], sample: float | None = None) -> Arrival:
        """A request that arrives now; `sample` is the share of traces, None if the gateway makes none."""
        started_unix_s, started_s = time.time(), time.monotonic()
        # Never the client's id: two clients may choose the same one, and engines merge equal ids.
        request_id = os.urandom(16).hex()
        client_request_id = request_id_from(headers.get(b"x-request-id"))
        reply_headers = [(b"x-request-id", request_id.encode())]
        if endpoint in ANTHROPICS:
            # Where Anthropic's clients look for it.
            reply_headers.append((b"request-id", request_id.encode()))
        if client_request_id is not None:
            reply_headers.append((b"x-client-request-id", client_request_id.encode()))
        timing = headers.get(ASKS_FOR_TIMING) == b"1"
        trace = None
        if sample is not None or TRACEPARENT in headers:
            trace = trace_of(headers, request_id, endpoint, sample)
        return cls(
            endpoint, request_id, client_request_id, reply_headers, timing, started_unix_s, started_s, trace
        )

    def timeline(self, request: GenerationRequest) -> TimelineBuilder:
        """The request's timeline, which begins with its head."""
        return TimelineBuilder(
            request, self.started_unix_s, self.client_request_id, self.trace, self.stage_ends_s
        )


class Pipeline:
    """Serves the endpoints that generate."""

    def __init__(
        self,
        world: World,
        driver: FlowDriver,
        authenticator: Authenticator,
        timelines: Sequence[TimelineSink],
        count_rejection: Callable[[RejectionKind], None],
        open_requests: OpenRequests,
        reservations: Reservations,
        hashing: PrefixHashing | None = None,
    ) -> None:
        self._world = world
        self._driver = driver
        self._authenticator = authenticator
        self._timelines = timelines
        self.count_rejection = count_rejection
        self._open_requests = open_requests
        self._reservations = reservations
        self._found = driver.found
        self._bodies = Bodies(BodyReader(hashing, None if driver.found is None else driver.found.entrance))
        self._marking = Marking(authenticator.hash_key(b"marks"))
        self._sample: float | None = None
        self.engine_paths: frozenset[str] = frozenset()
        """The paths that the operator has added to those that are forwarded."""
        self.request_flow: Callable[[GenerationRequest, World], RequestFlow] = request_flow
        """What begins a flow; a recorder has one of its own."""

    async def generate(self, endpoint: Endpoint, scope: Scope, client: Client) -> None:
        """Serve one request. A stage that ends it early answers with the status in its comment.

        A forwarded path goes to the engine as it stands in `scope`.
        """
        headers, reservation = headers_of(scope), Reservation()
        client.is_anthropic = endpoint in ANTHROPICS
        arrival, caller = Arrival.of(endpoint, headers, self._sample), None
        size = _size(headers.get(b"content-length"))
        try:
            # 1. Authenticate: 401.
            caller = self._authenticator.caller(headers.get(b"authorization"), headers.get(b"x-api-key"))
            # If the gateway itself is under strain: 503.
            if (overload := self._reservations.overload).stage:
                lowest = self._authenticator.lowest_priority
                overload.check(caller.priority, lowest, size)
            # 2. Count it against its key's limits: 429, or 503 if they cannot be checked.
            if not caller.limits.unlimited and (over := await self._reservations.count(caller, reservation)):
                await self._reject(over, client, arrival, caller)
                return
            arrival.end_stage()
            # 3. Reserve memory for its body and read it: 408, 413, 503, or the client leaves.
            client.watch()
            until_s = arrival.started_s + caller.max_wait_s
            body = await self._reservations.read_body(client.read_body, size, caller, reservation, until_s)
            arrival.end_stage()
            # 4. Parse it and its cache headers: 400.
            wishes = self._cache_wishes(endpoint, headers, scope)
            unread = Unread(endpoint, body, wishes, caller.tenant, caller.salt)
            boundary = form_boundary(headers.get(b"content-type")) if endpoint is _FORWARDED else None
            if boundary is not None:
                read = Read(parse_form(body, boundary, lends_rights=self.lends_rights))
            else:
                # A body that came slowly waits for its turn as long as any other.
                read = await self._bodies.read(unread, time.monotonic() + caller.max_wait_s)
            if endpoint is _FORWARDED and not read.parsed.model:
                read.parsed = replace(read.parsed, model=only_model(self._world.cluster, scope))
            request = self._request(arrival, read, caller, body)
            arrival.end_stage()
            call = _call(arrival, request, read, caller, client, reservation)
            if endpoint is _FORWARDED:
                call.method, call.path = target(scope)
            if boundary is not None:
                call.content_type = headers[b"content-type"]
            # If it has ended engines: 422.
            if (quarantine := self._driver.quarantine).guilty:
                quarantine.check(caller.tenant, call.body)
            # A stream may last long, so the parsed body is freed.
            del headers, body, read, unread
            # 5. Drive the flow: look it up in the cache, place it, answer it; 4xx or 5xx if that fails.
            # 6. Record how it ended.
            await self._drive_and_record(self.request_flow(request, self._world), call)
        except RequestRejected as rejection:
            self._record_rejection(arrival, caller, rejection.kind)
            await send_rejection(client, rejection, arrival.reply_headers)
        except ClientLeft:
            return
        finally:
            self._reservations.release(reservation)

    async def read(self, arrival: Arrival, body: bytes, caller: Caller) -> tuple[GenerationRequest, Parsed]:
        """Parse the body of a request that is answered elsewhere; raises RequestRejected."""
        unread = Unread(arrival.endpoint, body, USUAL, caller.tenant, caller.salt)
        read = await self._bodies.read(unread, arrival.started_s + caller.max_wait_s)
        return self._request(arrival, read, caller, body), read.parsed

    def _cache_wishes(self, endpoint: Endpoint, headers: dict[bytes, bytes], scope: Scope) -> CacheWishes:
        if self._found is None or not endpoint.is_completion:
            return USUAL
        return cache_wishes(with_all_lines(headers, scope["headers"]))

    def set_hashing(self, hashing: PrefixHashing | None) -> None:
        """From now on with prefix hashes, or without."""
        self._bodies.reader = replace(self._bodies.reader, hashing=hashing)

    @property
    def lends_rights(self) -> bool:
        """Whether clients have rights through this gateway that they would not have at the engines."""
        return self._bodies.reader.lends_rights

    def set_trust(self, config: GatewayConfig, *, lends_rights: bool) -> None:
        """From now on what engines leave open is closed, or not, and they get unknown fields, or not.

        Paths that the operator has added are forwarded even if rights are lent.
        """
        self.engine_paths = frozenset(config.engine_paths)
        passes_unknown = config.unknown_fields == "pass"
        self._bodies.reader = replace(
            self._bodies.reader, lends_rights=lends_rights, passes_unknown=passes_unknown
        )

    def set_tracing(self, sample: float) -> None:
        """From now on every request has a trace, of which this share is chosen at its beginning."""
        self._sample = sample

    def start(self) -> None:
        """Have ready what large requests need; they can do without."""
        self._bodies.helper.start()

    def close(self) -> None:
        """End what was started for requests."""
        self._bodies.helper.close()

    async def _reject(self, over: Reject, client: Client, arrival: Arrival, caller: Caller) -> None:
        await send_error(
            client,
            over.reason,
            over.detail,
            headers=arrival.reply_headers,
            retry_after_s=over.retry_after_s,
        )
        self._record_rejection(arrival, caller, over.reason)

    def _record_rejection(
        self, arrival: Arrival, caller: Caller | None, reason: RejectReason | RejectionKind
    ) -> None:
        """Record a request that ended before its flow.

        One without a known key is only counted: anyone may send those, and they must neither replace the
        records of tenants' requests nor fill the log.
        """
        if caller is None:
            self.count_rejection(RejectionKind.UNAUTHENTICATED)
            return
        timeline = arrival.timeline(_head_only(arrival, caller))
        self._record(timeline.build(Outcome.REJECTED, time.monotonic(), reason, None))

    async def _drive_and_record(self, flow: RequestFlow, call: Call) -> None:
        """Drive the flow, and record the request whatever interrupts it."""
        call.client.watch()
        self._open_requests.add(call)
        ending = STOPPED
        try:
            ending = await self._driver.drive(flow, call)
        except Exception:
            ending = _OUR_FAULT
            raise
        finally:
            call.client.unwatch()
            self._open_requests.discard(call)
            ended_s = time.monotonic()
            blocked_s = call.client.blocked_until(ended_s)
            timeline = call.timeline.build(ending.outcome, ended_s, ending.reason, blocked_s)
            if self._found is not None:
                self._found.leave(call, timeline)
            self._record(timeline)
            if ending.reason == RejectReason.ALL_ATTEMPTS_FAILED:
                self._note_failed(call, timeline)

    def _note_failed(self, call: Call, timeline: Timeline) -> None:
        quarantine = self._driver.quarantine
        engines = quarantine.failed(timeline.tenant, call.body, timeline)
        if engines is not None:
            asyncio.get_running_loop().call_later(SURE_AFTER_S, quarantine.judge, engines)

    def _record(self, timeline: Timeline) -> None:
        for sink in self._timelines:
            try:
                sink.record(timeline)
            except Exception:
                # The client has its answer, and the other sinks must still get the request.
                logger.exception("a request is missing in one of its records")

    def _only_model(self) -> str:
        models = self._world.cluster.models
        if len(models) != 1:
            raise no_model()
        return models[0]

    def _request(self, arrival: Arrival, read: Read, caller: Caller, body: bytes) -> GenerationRequest:
        parsed = read.parsed
        prefix, text = self._marking.marks(arrival.endpoint, body, parsed, arrival.started_s)
        return GenerationRequest(
            request_id=arrival.request_id,
            endpoint=arrival.endpoint,
            model=parsed.model or self._only_model(),
            arrived_s=arrival.started_s,
            prompt_bytes=len(body),
            max_output_tokens=parsed.max_output_tokens,
            stream=parsed.stream,
            tenant=caller.tenant,
            priority=caller.priority,
            weight=caller.weight,
            slo_class=caller.slo_class,
            prefix_marks=prefix,
            choices=parsed.choices,
            text_marks=text,
            key_id=caller.key_id,
            limits=caller.limits,
            max_wait_s=caller.max_wait_s,
            prefix_hashes=read.hashes,
            conversation=read.conversation,
            splittable=parsed.splittable,
            media_bytes=parsed.media_bytes,
        )


def _call(
    arrival: Arrival,
    request: GenerationRequest,
    read: Read,
    caller: Caller,
    client: Client,
    reservation: Reservation,
) -> Call:
    headers, parsed, lookup = arrival.reply_headers, read.parsed, read.lookup
    if parsed.ignored:
        headers = [*headers, (b"x-phasewise-ignored", shown_names(parsed.ignored))]
    timeline = arrival.timeline(request)
    if lookup is not None:
        timeline.note_cache(lookup)
    return Call(
        path=arrival.endpoint.value,
        body=salted(parsed.upstream_body, caller.salt if parsed.takes_salt else None),
        request_id=arrival.request_id,
        hide_usage=parsed.hide_usage,
        client=client,
        timeline=timeline,
        reply_headers=headers,
        reservation=reservation,
        wants_timing=arrival.wants_timing,
        cache=lookup,
    )


def _size(content_length: bytes | None) -> int | None:
    return None if content_length is None else int(content_length)


def _head_only(arrival: Arrival, caller: Caller) -> GenerationRequest:
    """A request of which only the head is known."""
    return GenerationRequest(
        request_id=arrival.request_id,
        endpoint=arrival.endpoint,
        model="",
        arrived_s=arrival.started_s,
        prompt_bytes=0,
        tenant=caller.tenant,
        priority=caller.priority,
        slo_class=caller.slo_class,
        key_id=caller.key_id,
        limits=caller.limits,
    )
