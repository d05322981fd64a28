"""One request for generation from its first byte to its record: authenticate, parse, drive the flow, record.

Placement and retries are the flow's, talking to workers the flow driver's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.asgi import Client, ClientLeft, Headers, Scope, header
from phasewise.gateway.auth import Caller, Doorkeeper
from phasewise.gateway.fields import Parsed, parse_body, prompt_bytes, request_id_from
from phasewise.gateway.flow_driver import Call, Ending, FlowDriver
from phasewise.gateway.http_errors import send_refusal
from phasewise.gateway.timeline_builder import TimelineBuilder
from phasewise.model.prefix_marks import prefix_marks
from phasewise.model.request import Endpoint, GenerationRequest
from phasewise.model.timeline import Outcome
from phasewise.ports import TimelineSink
from phasewise.request_flow import World, request_flow

_STOPPED = Ending(Outcome.CANCELLED, "gateway_stopped")
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
    ) -> None:
        self._world = world
        self._driver = driver
        self._doorkeeper = doorkeeper
        self._timelines = timelines
        self._count_refusal = count_refusal
        self._marks_key = secrets.token_bytes(32)

    async def generate(self, endpoint: Endpoint, scope: Scope, client: Client) -> None:
        """Serve one request."""
        started_unix_s, started_s = time.time(), time.monotonic()
        # Never the client's: two clients may choose the same, and an engine joins what has the same id.
        request_id = secrets.token_hex(16)
        client_request_id = request_id_from(header(scope, b"x-request-id"))
        reply_headers = _reply_headers(request_id, client_request_id)
        try:
            caller = self._doorkeeper.caller(header(scope, b"authorization"))
            body = await client.read_body()
            parsed = parse_body(endpoint, body)
        except RequestRefused as refusal:
            self._count_refusal(refusal.kind)
            await send_refusal(client, refusal, reply_headers)
            return
        except ClientLeft:
            return
        marks = prefix_marks(prompt_bytes(endpoint, body), self._marks_key)
        request = _request(request_id, endpoint, parsed, caller, started_s, len(body), marks)
        call = Call(
            path=endpoint.value,
            body=parsed.upstream_body,
            request_id=request_id,
            hide_usage=parsed.hide_usage,
            client=client,
            timeline=TimelineBuilder(request, started_unix_s, client_request_id),
            reply_headers=reply_headers,
        )
        await self._serve(request, call)

    async def _serve(self, request: GenerationRequest, call: Call) -> None:
        call.client.watch()
        ending = _STOPPED
        try:
            ending = await self._driver.drive(request_flow(request, self._world), call)
        except Exception:
            ending = _OUR_FAULT
            raise
        finally:
            call.client.unwatch()
            timeline = call.timeline.build(ending.outcome, time.monotonic(), ending.reason)
            for sink in self._timelines:
                sink.record(timeline)


def _reply_headers(request_id: str, client_request_id: str | None) -> Headers:
    if client_request_id is None:
        return [(b"x-request-id", request_id.encode())]
    return [
        (b"x-request-id", request_id.encode()),
        (b"x-client-request-id", client_request_id.encode()),
    ]


def _request(
    request_id: str,
    endpoint: Endpoint,
    parsed: Parsed,
    caller: Caller,
    arrived_s: float,
    body_bytes: int,
    marks: tuple[str, ...],
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        endpoint=endpoint,
        model=parsed.model,
        arrived_s=arrived_s,
        prompt_bytes=body_bytes,
        max_output_tokens=parsed.max_output_tokens,
        stream=parsed.stream,
        tenant=caller.tenant,
        priority=caller.priority,
        slo_class=caller.slo_class,
        prefix_marks=marks,
        choices=parsed.choices,
    )
