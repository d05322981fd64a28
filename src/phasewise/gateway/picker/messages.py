"""Envoy's ext_proc messages: read into what the picker needs, written from what it decided. No IO.

The protocol is that of the Gateway API Inference Extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import Message

from phasewise.core.errors import FailureKind
from phasewise.core.value import value
from phasewise.gateway.picker import ext_proc
from phasewise.gateway.picker.ext_proc import ProcessingResponse
from phasewise.gateway.server.client import Headers

DESTINATION = "x-gateway-destination-endpoint"
DESTINATION_NAMESPACE = "envoy.lb"
SUBSET = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_Fields = dict[str, Any]
PIECE_BYTES = 62_000
"""Of a body that is sent back, as the inference extension does: messages stay below 64 kB."""
DETAILS = "response.code_details"
"""The attribute in which Envoy says whether it answered itself, and why."""


@value
class RequestHead:
    """A request's head. `subset` are the addresses that may serve it, None if all may.

    `is_streamed`: Envoy sends the body without waiting for an answer to the head, as the picker needs it.
    """

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    has_body: bool
    is_streamed: bool
    subset: frozenset[str] | None

    def first(self, names: Sequence[bytes]) -> bytes:
        """The first of these headers that is given; empty if none is."""
        return next((self.headers[name] for name in names if name in self.headers), b"")


@value
class ResponseHead:
    """A response's status. `failure` is set if Envoy answered because no engine did."""

    status: int
    failure: FailureKind | None


def read_request_head(message: Message) -> RequestHead:
    """The first message of a request; of several headers with one name, the first counts."""
    headers: dict[bytes, bytes] = {}
    for it in message.request_headers.headers.headers:
        headers.setdefault(it.key.lower().encode(), it.raw_value or it.value.encode())
    has_body, mode = not message.request_headers.end_of_stream, message.protocol_config.request_body_mode
    return RequestHead(
        method=headers.get(b":method", b"").decode("latin-1"),
        path=headers.get(b":path", b"").partition(b"?")[0].decode("latin-1"),
        headers=headers,
        has_body=has_body,
        is_streamed=not has_body or mode == ext_proc.FULL_DUPLEX_STREAMED,
        subset=_subset(message),
    )


def _subset(message: Message) -> frozenset[str] | None:
    namespace = message.metadata_context.filter_metadata.get(SUBSET_NAMESPACE)
    if namespace is None or SUBSET not in namespace.fields:
        return None
    given = namespace.fields[SUBSET]
    listed = [it.string_value for it in given.list_value.values] or given.string_value.split(",")
    return frozenset(it.strip() for it in listed if it.strip())


def read_response_head(message: Message) -> ResponseHead:
    """The message in which Envoy reports the head of the response."""
    status = 0
    for it in message.response_headers.headers.headers:
        if it.key == ":status":
            status = int(it.raw_value or it.value or 0)
    return ResponseHead(status, _failure(message))


def _failure(message: Message) -> FailureKind | None:
    """None if the engine answered, or if Envoy does not say who did."""
    found = [it.fields[DETAILS] for it in message.attributes.values() if DETAILS in it.fields]
    details = "".join(it.string_value for it in found)
    if not details or details == "via_upstream":
        return None
    if "connection_failure" in details or "connection_timeout" in details:
        return FailureKind.CONNECTION_REFUSED
    return FailureKind.CLOSED if details.startswith("upstream_reset") else None


def placed(
    address: str, body: bytes, set_headers: Headers = (), removed: Sequence[str] = (), *, trailers: bool
) -> Iterator[Message]:
    """Send the request there: the answer to its head, its body in pieces, as full duplex wants it, and its
    trailers, if it has any.
    """
    lines = [(DESTINATION.encode(), address.encode()), *set_headers]
    head = {"header_mutation": _mutation(lines, removed), "clear_route_cache": True}
    answer = ProcessingResponse(request_headers={"response": head})
    answer.dynamic_metadata.update({DESTINATION_NAMESPACE: {DESTINATION: address}})
    yield answer
    last = max(0, len(body) - 1) // PIECE_BYTES * PIECE_BYTES
    for at in range(0, last + 1, PIECE_BYTES):
        yield ProcessingResponse(
            request_body=_piece(body[at : at + PIECE_BYTES], ends=at == last and not trailers)
        )
    if trailers:
        yield ProcessingResponse(request_trailers={})


def _piece(content: bytes, *, ends: bool) -> _Fields:
    piece = {"body": content, "end_of_stream": ends}
    return {"response": {"body_mutation": {"streamed_response": piece}}}


def immediate(status: int, headers: Headers, body: bytes, details: str) -> Message:
    """Answer the client now. Envoy closes connections by itself, so that header is left out."""
    kept = [(name, given) for name, given in headers if name != b"connection"]
    answer = {"status": {"code": status}, "headers": _mutation(kept), "body": body, "details": details}
    return ProcessingResponse(immediate_response=answer)


def passed_on(message: Message) -> Message:
    """Let this part of a response through unchanged.

    A piece of a body is sent back: Envoy sends none to the picker unless it waits for that.
    """
    kind = message.WhichOneof("request")
    part, is_body = getattr(message, kind), kind == "response_body"
    return ProcessingResponse(**{kind: _piece(part.body, ends=part.end_of_stream) if is_body else {}})


def _mutation(lines: Headers, removed: Sequence[str] = ()) -> _Fields:
    overwrite = {"append_action": ext_proc.OVERWRITE_IF_EXISTS_OR_ADD}
    headers = ({"key": name.decode(), "raw_value": given} for name, given in lines)
    return {"set_headers": [{"header": it, **overwrite} for it in headers], "remove_headers": removed}


@cache
def address_of(url: str) -> str | None:
    """The IP:PORT of a worker's URL; None if its host is a name, which Envoy cannot be sent to."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        version = ip_address(host).version
    except ValueError:
        return None
    return f"[{host}]:{port}" if version == 6 else f"{host}:{port}"
