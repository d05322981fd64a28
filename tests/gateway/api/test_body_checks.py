"""Schemas that an engine would die of, or stand still over, are rejected; ordinary ones pass."""

from __future__ import annotations

import orjson
import pytest

from phasewise.core.errors import RequestRejected
from phasewise.core.request import Endpoint
from phasewise.gateway.api.fields import parse_body
from phasewise.gateway.api.schemas import MOST_ITEMS, MOST_PATTERN_CHARS

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def ways(schema):
    """Every way in which a schema reaches an engine."""
    function = {"name": "f", "parameters": schema}
    return [
        {"structured_outputs": {"json": schema}},
        {"structured_outputs": {"json": orjson.dumps(schema).decode()}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        {"tools": [{"type": "function", "function": function}]},
        {"guided_json": schema},
        {"guided_json": orjson.dumps(schema).decode()},
    ]


def inside(schema):
    return {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, schema]}}}


def parse(body):
    return parse_body(Endpoint.CHAT, body if isinstance(body, bytes) else orjson.dumps(body))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 10**9},
        {"type": "array", "maxItems": MOST_ITEMS + 1},
        {"type": "array", "minItems": 1e9},
        {"type": "string", "pattern": "a{10000}"},
        {"type": "string", "pattern": "a{1,10000}"},
        {"type": "string", "pattern": "^(a{2500}){ 2500 }$"},
    ],
)
def test_what_an_engine_would_unroll_for_too_long_is_rejected(schema):
    for fields in (*ways(schema), *ways(inside(schema))):
        with pytest.raises(RequestRejected) as rejected:
            parse({**CHAT, **fields})
        assert rejected.value.param in fields


@pytest.mark.parametrize(
    "fields", [{"structured_outputs": {"regex": "a{9999}"}}, {"guided_regex": "(ab){3,4000}"}]
)
def test_a_pattern_of_its_own_is_bounded_too(fields):
    with pytest.raises(RequestRejected):
        parse({**CHAT, **fields})


def test_many_patterns_count_together():
    schema = {"type": "object", "properties": {f"p{it}": {"pattern": "a{1000}"} for it in range(11)}}
    with pytest.raises(RequestRejected):
        parse({**CHAT, "guided_json": schema})


def test_an_escaped_name_hides_nothing():
    body = rb'{"model":"m","messages":[],"guided_json":{"type":"array","min\u0049tems":1000000000}}'
    with pytest.raises(RequestRejected):
        parse(body)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 1, "maxItems": MOST_ITEMS, "items": {"type": "string"}},
        {"type": "string", "pattern": r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
        {"type": "string", "maxLength": 1_000_000, "pattern": "^.{1,255}$"},
        {"type": "object", "properties": {"minItems": {"type": "string"}, "pattern": {"enum": ["a{99999}"]}}},
    ],
)
def test_ordinary_schemas_pass(schema):
    for fields in (*ways(schema), *ways(inside(schema))):
        assert parse({**CHAT, **fields}).model == "m"


def test_words_about_schemas_are_words():
    text = "what does minItems: 1000000000 or a{100000} mean?"
    messages = [{"role": "user", "content": text}]
    assert parse({"model": "m", "messages": messages, "tools": [{"description": text}]}).model == "m"


@pytest.mark.parametrize("digits", ["9" * 5_000, "0" * 5_000 + "9999"])
def test_a_repeat_count_of_any_length_is_rejected_in_words(digits):
    with pytest.raises(RequestRejected, match="too often"):
        parse({**CHAT, "guided_regex": "a{" + digits + "}"})


def test_zeros_before_a_repeat_count_do_not_make_it_larger():
    parse({**CHAT, "guided_regex": "a{" + "0" * 5_000 + "12}"})


@pytest.mark.parametrize("text", ["{" * (MOST_PATTERN_CHARS + 1), "{}" * MOST_PATTERN_CHARS])
def test_patterns_of_any_length_are_not_scanned(text):
    for fields in ({"guided_regex": text}, {"guided_json": {"anyOf": [{"pattern": text[:40_000]}] * 2}}):
        with pytest.raises(RequestRejected, match="longer"):
            parse({**CHAT, **fields})


def test_names_of_pattern_properties_are_patterns():
    schema = {"type": "object", "patternProperties": {"a{10000}": {"type": "integer"}}}
    for fields in ways(schema):
        with pytest.raises(RequestRejected, match="too often"):
            parse({**CHAT, **fields})


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"array","maxItems":1000000000,"x":NaN}',
        '{"maxItems":1e999}',
        "[" * 100 + "]" * 100,
        '{"a":[' + "{}," * 20_000 + "{}]}",
        "no JSON",
    ],
    ids=["NaN", "infinite", "deep", "many", "none"],
)
def test_a_schema_in_a_string_is_held_to_the_bounds_of_a_body(text):
    for fields in ({"guided_json": text}, {"structured_outputs": {"json": text}}):
        with pytest.raises(RequestRejected):
            parse({**CHAT, **fields})


@pytest.mark.parametrize(
    "pattern", ["(a{100}){100}", "((((a{10}){10}){10}){10})", "a{60}{60}", "([a-z]{2}|(b{50}){40}){30}"]
)
def test_repeats_within_repeats_count_as_they_are_written_out(pattern):
    with pytest.raises(RequestRejected, match="too often"):
        parse({**CHAT, "guided_regex": pattern})


@pytest.mark.parametrize(
    "pattern",
    [r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){0,5}", r"\(\d{3}\) \d{3}-\d{4}", "[({]{2}x{900}", "(a{9}){9}"],
)
def test_ordinary_repeats_pass(pattern):
    parse({**CHAT, "guided_regex": pattern})


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [1, 1e30]},
        {"guided_json": {"maximum": 1e30}},
        {"guided_json": '{"minimum": -1e30}'},
    ],
)
def test_a_number_that_no_engine_can_hold_is_rejected_wherever_it_is(fields):
    with pytest.raises(RequestRejected, match="too large a number"):
        parse({**CHAT, **fields})


@pytest.mark.parametrize("number", [b"9" * 30, b"-1e30", b"1E+30"])
def test_nor_in_the_parameters_of_a_tool(number):
    tool = b'{"type":"function","function":{"name":"f","parameters":{"maximum":%b}}}' % number
    with pytest.raises(RequestRejected, match="too large a number"):
        parse(orjson.dumps(CHAT)[:-1] + b',"tools":[%b]}' % tool)
