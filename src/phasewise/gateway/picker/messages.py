"""Envoy's ext_proc messages: read into what the picker needs, written from what it decided. No IO.

The protocol is that of the Gateway API Inference Extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import DESCRIPTOR as STRUCT_FILE

from phasewise.core.errors import FailureKind
from phasewise.core.value import value
from phasewise.gateway.server.client import Headers

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
FULL_DUPLEX_STREAMED = 4
OVERWRITE_IF_EXISTS_OR_ADD = 2
DESTINATION = "x-gateway-destination-endpoint"
DESTINATION_NAMESPACE = "envoy.lb"
SUBSET = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_Fields = dict[str, Any]
PIECE_BYTES = 62_000
"""Of a body that is sent back, as the inference extension does: messages stay below 64 kB."""
DETAILS = "response.code_details"
"""The attribute in which Envoy says whether it answered itself, and why."""


# Envoy's messages, as far as the picker reads and writes them; other fields are skipped. A pool of their own
# keeps them from clashing with generated code of other packages.
#
# A message and its fields, [ONEOF/]NAME=NUMBER:TYPE. A type with * is repeated, one with {} is a map from
# strings. Enums are int32: the bytes are the same.
_PACKAGES = {
    "envoy.type.v3": "HttpStatus code=1:int32",
    "envoy.config.core.v3": """\
HeaderValue key=1:string value=2:string raw_value=3:bytes
HeaderValueOption header=1:HeaderValue append_action=3:int32
HeaderMap headers=1:HeaderValue*
Metadata filter_metadata=1:Struct{}""",
    "envoy.service.ext_proc.v3": """\
HttpHeaders headers=1:HeaderMap end_of_stream=3:bool
HttpBody body=1:bytes end_of_stream=2:bool
HttpTrailers trailers=1:HeaderMap
ProtocolConfiguration request_body_mode=1:int32
ProcessingRequest request/request_headers=2:HttpHeaders request/response_headers=3:HttpHeaders \
request/request_body=4:HttpBody request/response_body=5:HttpBody \
request/request_trailers=6:HttpTrailers request/response_trailers=7:HttpTrailers \
metadata_context=8:Metadata attributes=9:Struct{} protocol_config=11:ProtocolConfiguration
HeaderMutation set_headers=1:HeaderValueOption* remove_headers=2:string*
StreamedBodyResponse body=1:bytes end_of_stream=2:bool
BodyMutation mutation/streamed_response=3:StreamedBodyResponse
CommonResponse header_mutation=2:HeaderMutation body_mutation=3:BodyMutation clear_route_cache=5:bool
HeadersResponse response=1:CommonResponse
BodyResponse response=1:CommonResponse
TrailersResponse header_mutation=1:HeaderMutation
ImmediateResponse status=1:HttpStatus headers=2:HeaderMutation body=3:bytes details=5:string
ProcessingResponse response/request_headers=1:HeadersResponse response/response_headers=2:HeadersResponse \
response/request_body=3:BodyResponse response/response_body=4:BodyResponse \
response/request_trailers=5:TrailersResponse response/response_trailers=6:TrailersResponse \
response/immediate_response=7:ImmediateResponse dynamic_metadata=8:Struct""",
}


def _classes() -> dict[str, Any]:
    """The class of each message by its name."""
    pool, names = DescriptorPool(), {"Struct": ".google.protobuf.Struct"}
    pool.AddSerializedFile(STRUCT_FILE.serialized_pb)
    needed = [STRUCT_FILE.name]
    for package, messages in _PACKAGES.items():
        file = FileDescriptorProto(name=package, package=package, syntax="proto3", dependency=needed)
        for line in messages.splitlines():
            name, *fields = line.split()
            names[name] = f".{package}.{name}"
            message = file.message_type.add(name=name)
            for field in fields:
                _add_field(message, field, names)
        pool.AddSerializedFile(file.SerializeToString())
        needed.append(package)
    return {name: GetMessageClass(pool.FindMessageTypeByName(full[1:])) for name, full in names.items()}


def _add_field(message: DescriptorProto, written: str, names: dict[str, str]) -> None:
    name, number, kind = written.replace("=", ":").split(":")
    oneof, _, name = name.rpartition("/")
    field = message.field.add(name=name, number=int(number))
    if oneof:
        field.oneof_index = 0
        message.ClearField("oneof_decl")
        message.oneof_decl.add(name=oneof)
    label = "REPEATED" if kind.endswith(("*", "{}")) else "OPTIONAL"
    field.label = getattr(FieldDescriptorProto, f"LABEL_{label}")
    of = kind.rstrip("*{}")
    if of not in names:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{of.upper()}")
        return
    field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, names[of]
    if kind.endswith("{}"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        field.type_name = f"{names[message.name]}.{entry.name}"
        _add_field(entry, "key=1:string", names)
        _add_field(entry, f"value=2:{of}", names)


_CLASSES = _classes()
ProcessingRequest, ProcessingResponse = _CLASSES["ProcessingRequest"], _CLASSES["ProcessingResponse"]


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
    for line in message.request_headers.headers.headers:
        headers.setdefault(line.key.lower().encode(), line.raw_value or line.value.encode())
    has_body, mode = not message.request_headers.end_of_stream, message.protocol_config.request_body_mode
    return RequestHead(
        method=headers.get(b":method", b"").decode("latin-1"),
        path=headers.get(b":path", b"").partition(b"?")[0].decode("latin-1"),
        headers=headers,
        has_body=has_body,
        is_streamed=not has_body or mode == FULL_DUPLEX_STREAMED,
        subset=_subset(message),
    )


def _subset(message: Message) -> frozenset[str] | None:
    namespace = message.metadata_context.filter_metadata.get(SUBSET_NAMESPACE)
    if namespace is None or SUBSET not in namespace.fields:
        return None
    given = namespace.fields[SUBSET]
    listed = [address.string_value for address in given.list_value.values] or given.string_value.split(",")
    return frozenset(address.strip() for address in listed if address.strip())


def read_response_head(message: Message) -> ResponseHead:
    """The message in which Envoy reports the head of the response."""
    status = 0
    for line in message.response_headers.headers.headers:
        if line.key == ":status":
            status = int(line.raw_value or line.value or 0)
    return ResponseHead(status, _failure(message))


def _failure(message: Message) -> FailureKind | None:
    """None if the engine answered, or if Envoy does not say who did."""
    found = [given.fields[DETAILS] for given in message.attributes.values() if DETAILS in given.fields]
    details = "".join(text.string_value for text in found)
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
    overwrite = {"append_action": OVERWRITE_IF_EXISTS_OR_ADD}
    headers = ({"key": name.decode(), "raw_value": given} for name, given in lines)
    return {"set_headers": [{"header": header, **overwrite} for header in headers], "remove_headers": removed}


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
