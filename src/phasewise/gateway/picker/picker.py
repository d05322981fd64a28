"""Places requests for Envoy: the third driver of flows, beside the gateway's over HTTP and the simulator.

Envoy sends the request and streams the answer. The picker sees the head of the response and the end of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from zlib import crc32

from google.protobuf.message import Message

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint, GenerationRequest
from phasewise.core.timeline import EngineAccount
from phasewise.gateway.api.auth import Caller, salted
from phasewise.gateway.api.pipeline import Arrival
from phasewise.gateway.http_errors import HTTP_ERRORS, error_body, error_headers
from phasewise.gateway.parts import GatewayParts
from phasewise.gateway.picker import messages
from phasewise.gateway.picker.messages import RequestHead, ResponseHead, address_of
from phasewise.gateway.picker.stream import MessageStream
from phasewise.gateway.server.client import ClientLeft
from phasewise.gateway.upstream.call import Reservation
from phasewise.gateway.upstream.driver import charge, wait_for_grant
from phasewise.scheduling import RequestFlow, expected_tokens, request_flow, steps
from phasewise.scheduling.steps import Generate, Reject

logger = logging.getLogger("phasewise.gateway")

_ENDPOINTS = frozenset(WITH_KNOWN_FIELDS)
_KEYS = ("authorization", "x-api-key")
SHED = frozenset({RejectReason.QUEUE_FULL, RejectReason.QUEUE_TIMEOUT})
"""The protocol asks for 429 where the gateway itself answers with 503."""
FAIRNESS = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
TTFT_MS = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms")
"""llm-d's names, the present one before the former one."""
FAIRNESS_TENANTS = 1_024
"""Fairness ids share so many tenants: clients choose them, and a tenant may be kept for long."""
ASSUMED_S_PER_TOKEN = 0.02
LONGEST_ASSUMED_S = 60.0
"""How long a request is taken to run where Envoy does not send responses."""


@dataclass(slots=True)
class Placed:
    """A request that Envoy sends to a worker; `flow` waits for the outcome of `step`."""

    request: GenerationRequest
    flow: RequestFlow
    step: Generate
    answers: Iterable[Message]
    response: ResponseHead | None = None


class EndpointPicker:
    """Answers the messages of each request. Only the performing of steps differs from the gateway's own."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._reservations = parts.reservations
        self._open: set[MessageStream] = set()
        self._sees_responses = False

    async def process(
        self, incoming: AsyncIterator[Message], _context: object = None
    ) -> AsyncIterator[Message]:
        """Answer one request's messages until Envoy closes their stream: the response has ended by then."""
        stream, reservation = MessageStream(incoming), Reservation()
        picked: Placed | Sequence[Message] = ()
        self._open.add(stream)
        try:
            picked = await self._pick(stream, reservation)
            for answer in picked.answers if isinstance(picked, Placed) else picked:
                yield answer
            if not isinstance(picked, Placed):
                return
            # A stream may last long, so the body is freed.
            picked.answers = ()
            self._reservations.release(reservation)
            reservation = Reservation()
            while (message := await stream.next()) is not None:
                self._look(message, picked)
                yield messages.passed_on(message)
        finally:
            self._open.discard(stream)
            stream.end()
            self._reservations.release(reservation)
            if isinstance(picked, Placed):
                self._ended(picked)

    def stop(self) -> None:
        """Leave all requests to Envoy: closing their streams in order does not disturb their responses."""
        for stream in self._open:
            stream.end()

    async def _pick(self, stream: MessageStream, reservation: Reservation) -> Placed | Sequence[Message]:
        """Where the request goes, or the answer that it gets instead: none if its client has left."""
        first = await stream.next()
        if first is None:
            return ()
        head = messages.read_request_head(first)
        anthropic = head.path.startswith(Endpoint.MESSAGES)
        try:
            picked = await self._place(head, stream, reservation)
        except RequestRejected as why:
            self._parts.rejections.count(why.kind)
            return (_error(why.kind, str(why), anthropic, why.param),)
        except ClientLeft:
            stopped = RejectReason.GATEWAY_STOPPED
            return (_error(stopped, "the endpoint picker stops", anthropic),) if stream.ended else ()
        if isinstance(picked, Reject):
            self._parts.rejections.count(picked.reason)
            return (_error(picked.reason, picked.detail, anthropic, retry_after_s=picked.retry_after_s),)
        return picked

    async def _place(
        self, head: RequestHead, stream: MessageStream, reservation: Reservation
    ) -> Placed | Reject:
        """The stages of `Pipeline.generate`, up to the worker."""
        parts, headers = self._parts, dict(head.headers)
        authenticator = parts.gateway.authenticator
        caller = authenticator.caller(headers.get(b"authorization"), headers.get(b"x-api-key"))
        arrival = Arrival.of(_endpoint(head), headers)
        size = int(headers.get(b"content-length", b"0")) or None
        self._reservations.overload.check(caller.priority, authenticator.lowest_priority, size)
        if not caller.limits.unlimited and (over := await self._reservations.count(caller, reservation)):
            return over
        body = b""
        if head.has_body:
            try:
                async with asyncio.timeout(parts.gateway.clients.timeouts.body_s):
                    until_s = arrival.started_s + caller.max_wait_s
                    body = await self._reservations.read_body(
                        stream.read_body, size, caller, reservation, until_s
                    )
            except TimeoutError:
                late = "the request's body did not come in time"
                raise RequestRejected(RejectionKind.BODY_TIMEOUT, late, hint="send it at once") from None
        request, parsed = await parts.gateway.pipeline.read(arrival, body, caller)
        request = self._with_wishes(request, head, caller)
        flow = request_flow(request, parts.world)
        step = await self._drive(flow, stream, reservation)
        if isinstance(step, Reject):
            return step
        address = address_of(step.worker.url)
        if address is None:
            flow.close()
            logger.error("%s has a host name in its url; Envoy needs an IP address", step.worker.name)
            return Reject(RejectReason.NO_HEALTHY_WORKER, "the engine has no IP address")
        # Envoy cannot hide the usage chunk that the gateway asks engines for.
        body = salted(body if parsed.hide_usage else parsed.upstream_body, caller.salt)
        # Clients' keys are for the gateway: engines get their own, or none.
        key = parts.engines.authorization(step.worker.name)
        lines = [(b"authorization", key)] if key else []
        removed = _KEYS if caller.key_id else ()
        answers = messages.placed(address, body, lines, removed, trailers=stream.has_trailers)
        return Placed(request, flow, step, answers)

    def _with_wishes(
        self, request: GenerationRequest, head: RequestHead, caller: Caller
    ) -> GenerationRequest:
        """With what Envoy and the client ask for. It is not disaggregated, because Envoy sends it once."""
        tenant, wait_s = request.tenant, request.max_wait_s
        if not caller.key_id and (fairness := head.first(FAIRNESS)):
            tenant = f"fairness-{crc32(fairness) % FAIRNESS_TENANTS}"
        if given := head.first(TTFT_MS):
            with suppress(ValueError):
                wait_s = min(wait_s, max(0.0, float(given)) / 1e3)
        workers = None if head.subset is None else self._named(request.model, head.subset)
        return replace(request, tenant=tenant, max_wait_s=wait_s, workers=workers, splittable=False)

    def _named(self, model: str, subset: frozenset[str]) -> frozenset[str] | None:
        """The workers at these addresses; None if they are all that serve the model."""
        serving = self._parts.world.cluster.serving(model)
        named = frozenset(state.worker.name for state in serving if address_of(state.worker.url) in subset)
        return None if named and len(named) == len(serving) else named

    async def _drive(
        self, flow: RequestFlow, stream: MessageStream, reservation: Reservation
    ) -> Generate | Reject:
        """Perform the flow's steps until it is placed or rejected; raises ClientLeft if it ends before."""
        kept = False
        try:
            step = next(flow)
            while not isinstance(step, Generate | Reject):
                outcome: steps.Outcome
                if isinstance(step, steps.LookUpCache):
                    outcome = steps.CacheMiss(time.monotonic())
                elif isinstance(step, steps.CountAndLookUp):
                    counted = await charge(self._parts.quotas, step, reservation)
                    outcome = counted, steps.CacheMiss(counted.at_s)
                elif isinstance(step, steps.Wait):
                    outcome = await _wait(step, stream)
                else:
                    raise TypeError(f"{type(step).__name__} cannot be performed by Envoy")
                step = flow.send(outcome)
            kept = isinstance(step, Generate)
            return step
        except StopIteration:
            raise ClientLeft from None
        finally:
            if not kept:
                flow.close()

    def _look(self, message: Message, picked: Placed) -> None:
        if not message.HasField("response_headers"):
            return
        self._sees_responses, step = True, picked.step
        picked.response = response = messages.read_response_head(message)
        if response.failure is None and response.status < 400:
            if step.trial is not None:
                step.trial.answered = lambda: True
            # The head comes before the first token: the closest that is seen of it.
            if step.on_first_content is not None:
                step.on_first_content()

    def _ended(self, picked: Placed) -> None:
        """Envoy has closed the stream: release what the request booked, and learn from it."""
        request, response, after_s = picked.request, picked.response, 0.0
        if response is None and not self._sees_responses:
            # This Envoy does not send responses here: the request has just begun.
            response = ResponseHead(200, None)
            after_s = min(LONGEST_ASSUMED_S, expected_tokens(request) * ASSUMED_S_PER_TOKEN)
        outcome = outcome_of(request, response, time.monotonic() + after_s)
        if after_s:
            asyncio.get_running_loop().call_later(after_s, _finish, picked.flow, outcome)
        else:
            _finish(picked.flow, outcome)


def outcome_of(
    request: GenerationRequest, response: ResponseHead | None, now_s: float
) -> steps.Succeeded | steps.Failed | steps.Cancelled:
    """What the flow is sent when the response has ended.

    Content counts as sent after a failure, because the client has Envoy's answer and no attempt can follow.
    An engine's own error may be the request's fault, so it says nothing about the engine.
    """
    if response is not None and response.failure is not None:
        return steps.Failed(now_s, response.failure, content_sent=True, tokens=0)
    if response is None or response.status >= 500:
        return steps.Cancelled(now_s, request.estimated_prompt_tokens)
    if response.status >= 400:
        return steps.Succeeded(now_s, 0)
    # The engine's usage is not seen: its prompt's size is estimated, and its tokens stay as charged.
    return steps.Succeeded(now_s, None, EngineAccount(prompt_tokens=request.estimated_prompt_tokens))


def _finish(flow: RequestFlow, outcome: steps.Outcome) -> None:
    """End a flow; what it would do next is not for Envoy's requests."""
    with suppress(StopIteration):
        flow.send(outcome)
    flow.close()


async def _wait(step: steps.Wait, stream: MessageStream) -> steps.Outcome:
    """Wait for a slot. Envoy closes the stream if the client leaves, and the picker when it stops."""
    granted = asyncio.ensure_future(wait_for_grant(step))
    try:
        await asyncio.wait({granted, stream.coming()}, return_when=asyncio.FIRST_COMPLETED)
        # At a stop, slots become free that nobody gets any more.
        goes_on = granted.done() and not stream.ended
        return granted.result() if goes_on else steps.Cancelled(time.monotonic())
    finally:
        granted.cancel()


def _endpoint(head: RequestHead) -> Endpoint:
    if head.method != "POST" or head.path not in _ENDPOINTS:
        hint = f"POST to {', '.join(WITH_KNOWN_FIELDS)}"
        raise RequestRejected(RejectionKind.NOT_FOUND, "there is nothing at this address", hint=hint)
    if not head.is_streamed:
        logger.error("Envoy's ext_proc filter needs request_body_mode: FULL_DUPLEX_STREAMED")
        raise RequestRejected(RejectionKind.BAD_CONFIG, "Envoy does not send bodies as the picker needs them")
    return Endpoint(head.path)


def _error(
    kind: RejectReason | RejectionKind,
    message: str,
    anthropic: bool,
    param: str | None = None,
    retry_after_s: float | None = None,
) -> Message:
    error = HTTP_ERRORS[kind]
    status, error_type = (429, "rate_limit_error") if kind in SHED else (error.status, error.type)
    body = error_body(message, error_type, code=kind, param=param, anthropic=anthropic)
    return messages.immediate(status, error_headers(kind, retry_after_s), body, f"phasewise_{kind}")
