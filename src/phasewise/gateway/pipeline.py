"""One request for generation from its first byte to its record: authenticate, parse, drive the flow, record.

Placement and retries are the flow's, talking to workers the flow driver's.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence

from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.asgi import Client, ClientLeft, Headers, Scope, headers_of
from phasewise.gateway.auth import Caller, Doorkeeper
from phasewise.gateway.cache_headers import with_all_lines
from phasewise.gateway.cache_turn import CacheTurn
from phasewise.gateway.call import STOPPED, Call, Ending
from phasewise.gateway.fields import Parsed, parse_body, request_id_from
from phasewise.gateway.flow_driver import FlowDriver
from phasewise.gateway.http_errors import send_refusal
from phasewise.gateway.marking import Marking
from phasewise.gateway.open_requests import OpenRequests
from phasewise.gateway.prefix_hashing import PrefixHashing
from phasewise.gateway.salt import salted
from phasewise.gateway.server_timing import ASKS_FOR_TIMING, wants_timing
from phasewise.gateway.timeline_builder import TimelineBuilder
from phasewise.model.prefix_hashes import BLOCK_BYTES
from phasewise.model.request import Endpoint, GenerationRequest
from phasewise.model.timeline import Outcome, Timeline
from phasewise.ports import TimelineSink
from phasewise.request_flow import World, request_flow

logger = logging.getLogger("phasewise.gateway")

_OUR_FAULT = Ending(Outcome.FAILED, "gateway_error")


class Pipeline:
    """Serves the endpoints that generate."""

    def __init__(
        self,
        world: World,
        driver: FlowDriver,
        doorkeeper: Doorkeeper,
        timelines: Sequence[TimelineSink],
        count_refusal: Callable[[RefusalKind], None],
        open_requests: OpenRequests,
        body_limit_bytes: int,
        hashing: PrefixHashing | None = None,
    ) -> None:
        self._world = world
        self._driver = driver
        self._doorkeeper = doorkeeper
        self._timelines = timelines
        self._count_refusal = count_refusal
        self._open_requests = open_requests
        self._body_limit_bytes = body_limit_bytes
        self._marking = Marking()
        # None where no decision would look at hashes: they cost a pass over the prompt.
        self._hashing = hashing
        self._found = driver.found

    async def generate(self, endpoint: Endpoint, scope: Scope, client: Client) -> None:
        """Serve one request."""
        # What was read of it is let go with the method that read it: a stream may last long.
        if taken_in := await self._take_in(endpoint, scope, client):
            await self._serve(*taken_in)

    async def _take_in(
        self, endpoint: Endpoint, scope: Scope, client: Client
    ) -> tuple[GenerationRequest, Call] | None:
        started_unix_s, started_s = time.time(), time.monotonic()
        headers = headers_of(scope)
        # Never the client's: two clients may choose the same, and an engine joins what has the same id.
        request_id = os.urandom(16).hex()
        client_request_id = request_id_from(headers.get(b"x-request-id"))
        reply_headers = _reply_headers(request_id, client_request_id)
        try:
            caller = self._doorkeeper.caller(headers.get(b"authorization"))
            body = await client.read_body(self._body_limit_bytes)
            parsed = parse_body(endpoint, body)
            turn = self._enter_cache(endpoint, parsed, with_all_lines(headers, scope["headers"]), caller)
        except RequestRefused as refusal:
            self._count_refusal(refusal.kind)
            await send_refusal(client, refusal, reply_headers)
            return None
        except ClientLeft:
            return None
        request = self._request(request_id, endpoint, parsed, caller, started_s, body)
        call = Call(
            path=endpoint.value,
            body=salted(parsed.upstream_body, caller.salt),
            request_id=request_id,
            hide_usage=parsed.hide_usage,
            client=client,
            timeline=TimelineBuilder(request, started_unix_s, client_request_id),
            reply_headers=reply_headers,
            wants_timing=wants_timing(headers.get(ASKS_FOR_TIMING)),
            cache=turn,
        )
        if turn is not None:
            call.timeline.note_cache(turn)
        return request, call

    def _enter_cache(
        self, endpoint: Endpoint, parsed: Parsed, headers: dict[bytes, bytes], caller: Caller
    ) -> CacheTurn | None:
        if self._found is None or not endpoint.generates:
            return None
        return self._found.enter(endpoint, parsed.fields, headers, caller.tenant)

    async def _serve(self, request: GenerationRequest, call: Call) -> None:
        call.client.watch()
        self._open_requests.add(call)
        ending = STOPPED
        try:
            ending = await self._driver.drive(request_flow(request, self._world), call)
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

    def _record(self, timeline: Timeline) -> None:
        for sink in self._timelines:
            try:
                sink.record(timeline)
            except Exception:
                # The client has its answer, and the other records are not to miss the request.
                logger.exception("a request is missing in one of its records")

    def _request(
        self,
        request_id: str,
        endpoint: Endpoint,
        parsed: Parsed,
        caller: Caller,
        arrived_s: float,
        body: bytes,
    ) -> GenerationRequest:
        return GenerationRequest(
            request_id=request_id,
            endpoint=endpoint,
            model=parsed.model,
            arrived_s=arrived_s,
            prompt_bytes=len(body),
            max_output_tokens=parsed.max_output_tokens,
            stream=parsed.stream,
            tenant=caller.tenant,
            priority=caller.priority,
            slo_class=caller.slo_class,
            prefix_marks=self._marking.prefix_marks(endpoint, body),
            choices=parsed.choices,
            text_marks=self._marking.text_marks(parsed),
            key_id=caller.key_id,
            limits=caller.limits,
            max_wait_s=caller.max_wait_s,
            prefix_hashes=self._prefix_hashes(endpoint, parsed, caller, body),
            splittable=parsed.splittable,
            media_bytes=parsed.media_bytes,
        )

    def _prefix_hashes(
        self, endpoint: Endpoint, parsed: Parsed, caller: Caller, body: bytes
    ) -> tuple[int, ...]:
        if self._hashing is None or len(body) < BLOCK_BYTES:
            return ()
        return self._hashing.hashes(endpoint, parsed.fields, caller.salt)


def _reply_headers(request_id: str, client_request_id: str | None) -> Headers:
    if client_request_id is None:
        return [(b"x-request-id", request_id.encode())]
    return [
        (b"x-request-id", request_id.encode()),
        (b"x-client-request-id", client_request_id.encode()),
    ]
