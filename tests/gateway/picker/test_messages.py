"""The endpoint-picker protocol's messages are read and written as it says."""

from __future__ import annotations

import pytest

from phasewise.core.errors import FailureKind
from phasewise.gateway.picker import messages
from phasewise.gateway.picker.messages import (
    PIECE_BYTES,
    ProcessingRequest,
    address_of,
    read_request_head,
    read_response_head,
)
from tests.gateway.picker_messages import CHAT, head, response


def set_headers_of(answer):
    mutation = answer.request_headers.response.header_mutation
    return {it.header.key: it.header.raw_value for it in mutation.set_headers}


def test_a_head_is_read_without_its_query():
    found = read_request_head(head("/v1/completions?x=1", authorization="Bearer k"))
    assert (found.method, found.path) == ("POST", "/v1/completions")
    assert found.headers[b"authorization"] == b"Bearer k"
    assert (found.has_body, found.is_streamed, found.subset) == (True, True, None)


def test_of_two_headers_with_one_name_the_first_counts():
    message = head()
    for given in (b"one", b"two"):
        line = message.request_headers.headers.headers.add()
        line.key, line.raw_value = "x-api-key", given
    assert read_request_head(message).headers[b"x-api-key"] == b"one"


def test_a_body_that_is_not_streamed_is_noticed():
    assert not read_request_head(head(mode=0)).is_streamed
    assert read_request_head(head(mode=0, ends=True)).is_streamed


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["10.0.0.1:80", "10.0.0.2:80"], {"10.0.0.1:80", "10.0.0.2:80"}),
        ("10.0.0.1:80, 10.0.0.2:80", {"10.0.0.1:80", "10.0.0.2:80"}),
        ([], set()),
        ("", set()),
    ],
)
def test_the_subset_is_a_list_or_a_text_and_may_be_empty(given, expected):
    assert read_request_head(head(subset=given)).subset == expected


def test_a_destination_is_named_in_header_and_metadata_alike():
    answer, *_ = messages.placed("10.0.0.1:80", b"{}", trailers=False)
    assert set_headers_of(answer)["x-gateway-destination-endpoint"] == b"10.0.0.1:80"
    assert answer.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == "10.0.0.1:80"
    overwrites = answer.request_headers.response.header_mutation.set_headers[0].append_action
    assert overwrites == messages.OVERWRITE_IF_EXISTS_OR_ADD


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
@pytest.mark.parametrize("trailers", [False, True])
def test_a_body_is_sent_back_whole_in_pieces(size, trailers):
    content = bytes(index % 251 for index in range(size))
    _head, *rest = messages.placed("10.0.0.1:80", content, trailers=trailers)
    if trailers:
        assert rest.pop().HasField("request_trailers")
    pieces = [it.request_body.response.body_mutation.streamed_response for it in rest]
    assert b"".join(it.body for it in pieces) == content
    assert [it.end_of_stream for it in pieces] == [False] * (len(pieces) - 1) + [not trailers]
    assert max(len(it.body) for it in pieces) <= PIECE_BYTES


def test_an_answer_of_its_own_leaves_the_connection_to_envoy():
    answer = messages.immediate(503, [(b"retry-after", b"1"), (b"connection", b"close")], b"{}", "why")
    sent = answer.immediate_response
    assert (sent.status.code, sent.body, sent.details) == (503, b"{}", "why")
    assert [it.header.key for it in sent.headers.set_headers] == ["retry-after"]


@pytest.mark.parametrize("kind", ["response_headers", "response_trailers"])
def test_other_parts_pass_unchanged(kind):
    message = ProcessingRequest()
    getattr(message, kind).SetInParent()
    assert messages.passed_on(message).WhichOneof("response") == kind


def test_a_piece_of_a_response_is_sent_back_where_envoy_waits_for_it():
    message = ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = b"data", True
    piece = messages.passed_on(message).response_body.response.body_mutation.streamed_response
    assert (piece.body, piece.end_of_stream) == (b"data", True)


@pytest.mark.parametrize(
    ("details", "failure"),
    [
        ("via_upstream", None),
        ("", None),
        ("upstream_reset_before_response_started{connection_termination}", FailureKind.CLOSED),
        (
            "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}",
            FailureKind.CONNECTION_REFUSED,
        ),
        ("upstream_response_timeout", None),
        ("ext_proc_error_grpc_error_14", None),
    ],
)
def test_envoys_details_say_whether_an_engine_failed(details, failure):
    found = read_response_head(response(503, details))
    assert (found.status, found.failure) == (503, failure)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1", "10.0.0.1:80"),
        ("https://[::1]", "[::1]:443"),
        ("http://engine:8000", None),
    ],
)
def test_an_address_is_an_ip_and_a_port(url, address):
    assert address_of(url) == address


# Written with the classes that are generated from Envoy's own files (of xds-protos).
ENVOYS_REQUEST = (
    "121c0a1a0a180a053a706174681a0f2f76312f636f6d706c6574696f6e7342520a500a14656e766f792e6c622e7375627365745f"
    "68696e7412380a360a25782d676174657761792d64657374696e6174696f6e2d656e64706f696e742d737562736574120d1a0b31"
    "302e302e302e313a383050015a0408041801"
)
ENVOYS_ANSWERS = (
    "0a440a42123e0a310a2d0a1e782d676174657761792d64657374696e6174696f6e2d656e64706f696e741a0b31302e302e302e31"
    "3a383018021209782d6170692d6b6579280142410a3f0a08656e766f792e6c6212332a310a2f0a1e782d676174657761792d6465"
    "7374696e6174696f6e2d656e64706f696e74120d1a0b31302e302e302e313a3830",
    "1a0c0a0a1a081a060a027b7d1001",
    "3a260a0308f70312160a140a100a0b72657472792d61667465721a013118021a027b7d2a03776879",
)


def test_a_request_is_read_from_envoys_bytes_and_fields_of_no_interest_are_skipped():
    found = read_request_head(ProcessingRequest.FromString(bytes.fromhex(ENVOYS_REQUEST)))
    assert (found.path, found.subset) == ("/v1/completions", {"10.0.0.1:80"})
    assert (found.has_body, found.is_streamed) == (True, True)


def test_answers_are_written_as_envoys_bytes():
    written = [
        *messages.placed("10.0.0.1:80", b"{}", removed=["x-api-key"], trailers=False),
        messages.immediate(503, [(b"retry-after", b"1")], b"{}", "why"),
    ]
    assert tuple(it.SerializeToString(deterministic=True).hex() for it in written) == ENVOYS_ANSWERS


def test_the_path_of_chats_is_the_gateways():
    assert read_request_head(head()).path == CHAT
