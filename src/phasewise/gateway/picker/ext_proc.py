"""Envoy's ext_proc messages, as far as the picker reads and writes them; other fields are skipped.

They are in a descriptor pool of their own, so they cannot clash with generated code of other packages.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import DESCRIPTOR as STRUCT_FILE

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
FULL_DUPLEX_STREAMED = 4
OVERWRITE_IF_EXISTS_OR_ADD = 2

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


CLASSES = _classes()
ProcessingRequest, ProcessingResponse = CLASSES["ProcessingRequest"], CLASSES["ProcessingResponse"]
