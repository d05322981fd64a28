"""Where rights are lent clients own few fields: the rest is rejected by name or left out."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import Endpoint
from phasewise.core.request_fields import FIELDS_ON
from phasewise.gateway.api.body_checks import DEEPEST, MEDIUM_AS_TEXT_BYTES
from phasewise.gateway.api.fields import (
    ALLOWED_FIELDS,
    ENGINE_CONTROLS,
    parse_body,
    request_id_from,
    shown_names,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def parse(fields, endpoint=Endpoint.CHAT):
    return parse_body(endpoint, orjson.dumps(fields))


def rejection(body, endpoint=Endpoint.CHAT):
    with pytest.raises(RequestRejected) as caught:
        parse_body(endpoint, body if isinstance(body, bytes) else orjson.dumps(body))
    assert caught.value.kind is RejectionKind.BAD_REQUEST
    return caught.value


def test_a_plain_request_goes_on_as_the_same_bytes():
    body = b' {"model": "m",  "messages": [], "max_tokens": 7}\n'
    parsed = parse_body(Endpoint.CHAT, body)
    assert parsed.upstream_body is body
    assert (parsed.model, parsed.stream, parsed.max_output_tokens, parsed.hide_usage) == (
        "m",
        False,
        7,
        False,
    )


@pytest.mark.parametrize("space", [b"", b" ", b"\r\n\t"])
def test_a_stream_is_asked_for_usage_and_keeps_its_other_bytes(space):
    body = b'{"model": "m", "stream": true, "temperature": 0.30000000000000004 }' + space
    parsed = parse_body(Endpoint.CHAT, body)
    assert parsed.upstream_body.startswith(
        b'{"model": "m", "stream": true, "temperature": 0.30000000000000004 '
    )
    assert orjson.loads(parsed.upstream_body)["stream_options"] == {"include_usage": True}
    assert parsed.hide_usage


def test_a_client_that_wants_usage_gets_it():
    body = orjson.dumps({**CHAT, "stream": True, "stream_options": {"include_usage": True}})
    parsed = parse_body(Endpoint.CHAT, body)
    assert parsed.upstream_body is body
    assert not parsed.hide_usage


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}, {"include_usage": 1}]
)
def test_other_stream_options_are_replaced_because_alone_they_do_nothing(options):
    parsed = parse({**CHAT, "stream": True, "stream_options": options})
    assert orjson.loads(parsed.upstream_body) == {
        **CHAT,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert parsed.hide_usage


@pytest.mark.parametrize("field", sorted(ENGINE_CONTROLS))
def test_engine_controls_are_rejected_by_name_and_without_their_value(field):
    error = rejection({**CHAT, field: "s3cret"})
    assert error.param == field
    assert field in str(error)
    assert "s3cret" not in str(error)


@given(st.text(min_size=1).filter(lambda name: name not in FIELDS_ON[Endpoint.CHAT]))
def test_an_unknown_field_is_left_out_and_named_whatever_its_name(name):
    parsed = parse({**CHAT, name: None})
    assert (parsed.ignored, orjson.loads(parsed.upstream_body)) == ((name,), CHAT)
    shown = shown_names(parsed.ignored)
    assert len(shown) <= 64
    assert shown.isascii()
    assert shown.decode().isprintable()


def test_a_header_names_some_of_many_fields():
    parsed = parse({**CHAT, **{f"f{number}": 1 for number in range(18_000)}})
    assert len(parsed.ignored) == 18_000
    assert shown_names(parsed.ignored).endswith(b"f31, ...")


def test_an_escaped_name_does_not_hide_a_field():
    assert rejection(rb'{"model":"m","kv_transfer_par\u0061ms":{}}').param == "kv_transfer_params"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "cache_salt", "return_dict"])
def test_controls_are_rejected_inside_the_arguments_of_the_template(name):
    error = rejection({**CHAT, "chat_template_kwargs": {"enable_thinking": False, name: "s3cret"}})
    assert error.param == f"chat_template_kwargs.{name}"
    assert error.param in str(error)
    assert "s3cret" not in str(error)


def test_arguments_that_only_the_template_sees_pass():
    assert parse({**CHAT, "chat_template_kwargs": {"enable_thinking": False, "custom": 1}}).model == "m"


def saying(*parts):
    words = {"role": "user", "content": "words"}
    content = [{"type": "text", "text": "see http://h/x.png"}, *parts]
    return {"model": "m", "messages": [words, {"role": "user", "content": content}]}


@pytest.mark.parametrize("name", ["image_url", "audio_url", "video_url", "input_audio"])
@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/s3cret", "file:///etc/s3cret", " data:x", "//s3cret", "", 7, ["http://h"]]
)
def test_media_that_the_engine_would_have_to_fetch_are_rejected(name, url):
    for media in (url, {"url": url, "detail": "low"}):
        for part in ({"type": name, name: media}, {name: media}, {"type": "text", "text": "", name: media}):
            error = rejection(saying(part))
            assert error.param == f"messages[1].content[1].{name}"
            assert "s3cret" not in str(error)


def test_an_escaped_name_does_not_hide_an_address():
    body = rb'{"model":"m","messages":[{"content":[{"image\u005fur\u006c":{"url":"http://h"}}]}]}'
    assert rejection(body).param == "messages[0].content[0].image_url"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": "DATA:image/png;base64,AAAA"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "image_url", "image_url": None},
        {"type": "text", "text": "http://h/x.png"},
        "words",
    ],
)
def test_media_that_come_along_pass_as_the_same_bytes(part):
    body = orjson.dumps(saying(part))
    assert parse_body(Endpoint.CHAT, body).upstream_body is body


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9_978}},
        {"type": "image_url", "image_url": "data:image/png;base64," + "A" * 9_978},
        {"type": "input_audio", "input_audio": {"data": "A" * 9_997, "format": "wav"}},
    ],
)
def test_bytes_of_media_beyond_what_their_tokens_are_worth_do_not_count_as_text(part):
    assert parse(saying(part, part)).media_bytes == 2 * (10_000 - MEDIUM_AS_TEXT_BYTES)
    assert parse(saying({"type": "text", "text": "A" * 10_000})).media_bytes == 0
    assert parse(saying({"image_url": "data:x"})).media_bytes == 0


@pytest.mark.parametrize(
    ("part", "name"),
    [
        # What an engine keeps under that name may be another tenant's.
        ({"type": "image_url", "image_url": None, "uuid": "u"}, "uuid"),
        ({"uuid": None, "image_url": {"url": "data:image/png;base64,AAAA"}}, "uuid"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "type"),
        ({"audio_embeds": "AAAA"}, "audio_embeds"),
        ({"type": "prompt_embeds", "data": "AAAA"}, "type"),
    ],
)
def test_what_is_kept_by_the_engine_or_is_a_tensor_cannot_be_handed_to_it(part, name):
    assert rejection(saying(part)).param == f"messages[1].content[1].{name}"


def nested(levels):
    return b'{"model":"m","messages":[],"tools":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_a_body_may_be_nested_so_deep_and_no_deeper():
    assert parse_body(Endpoint.CHAT, nested(DEEPEST)).model == "m"
    assert "deep" in str(rejection(nested(DEEPEST + 1)))
    assert rejection(nested(100_000))


@pytest.mark.parametrize("value", [[], "x", 7, True])
@pytest.mark.parametrize("name", ["structured_outputs", "response_format", "chat_template_kwargs"])
def test_what_has_to_be_an_object_is_one(name, value):
    assert rejection({**CHAT, name: value}).param == name
    assert parse({**CHAT, name: None}).model == "m"


@pytest.mark.parametrize("number", [b"9223372036854775808", b"-9223372036854775808", b"1e30", b"9" * 40])
def test_a_number_that_fits_nowhere_is_rejected(number):
    assert rejection(b'{"model":"m","messages":[],"top_k":' + number + b"}").param == "top_k"
    assert parse({**CHAT, "seed": 2**63 - 1}).model == "m"


def test_many_shallow_messages_are_not_deep():
    many = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}] * 1000
    assert parse({"model": "m", "messages": many}).model == "m"


def test_a_limit_beyond_all_answers_outweighs_nobody():
    assert parse({**CHAT, "max_tokens": 2**62}).max_output_tokens == 2**31


@pytest.mark.parametrize("messages", [None, 7, [7], [{}], [{"content": None}], [{"content": {"a": 1}}]])
def test_strange_messages_are_the_engines_to_judge(messages):
    assert parse({"model": "m", "messages": messages}).model == "m"


def test_no_engine_control_is_allowed():
    for allowed in ALLOWED_FIELDS.values():
        assert not allowed & ENGINE_CONTROLS


def test_each_endpoint_has_its_own_fields():
    assert parse({"model": "m", "prompt": "hi", "suffix": "!"}, Endpoint.COMPLETIONS).model == "m"
    assert parse({**CHAT, "prompt": "hi"}).ignored == ("prompt",)
    assert parse({**CHAT, "prompt": "hi"}, Endpoint.COMPLETIONS).ignored == ("messages",)


@pytest.mark.parametrize("extra", ["top_k", "min_p", "repetition_penalty", "ignore_eos"])
def test_sampling_extras_of_the_engine_pass(extra):
    assert parse({**CHAT, extra: 1}).model == "m"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'{"model":NaN}', None),
        (b"{}", "model"),
        (b'{"model":7}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":"' + b"m" * 257 + b'"}', "model"),
        (b'{"model":"m","stream":"yes"}', "stream"),
        (b'{"model":"m","stream":true,"stream_options":[]}', "stream_options"),
    ],
)
def test_a_malformed_body_is_rejected(body, param):
    assert rejection(body).param == param


def test_the_newer_limit_on_output_wins():
    assert parse({**CHAT, "max_tokens": 5, "max_completion_tokens": 9}).max_output_tokens == 9
    assert parse({**CHAT, "max_tokens": "many"}).max_output_tokens is None


@pytest.mark.parametrize("value", [b"abc", b"A-b_9", b"x" * 64])
def test_a_sane_request_id_is_kept(value):
    assert request_id_from(value) == value.decode()


@pytest.mark.parametrize("value", [None, b"", b"x" * 65, b"a b", b"a\nb", b"a/b", "é".encode()])
def test_any_other_request_id_is_dropped(value):
    assert request_id_from(value) is None
