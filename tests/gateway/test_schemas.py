"""Schemas that an engine would die of, or stand still over, are refused; ordinary ones pass."""

from __future__ import annotations

import orjson
import pytest

from phasewise.errors import RequestRefused
from phasewise.gateway.fields import parse_body
from phasewise.gateway.schemas import MOST_ITEMS
from phasewise.model.request import Endpoint

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
def test_what_an_engine_would_unroll_for_too_long_is_refused(schema):
    for fields in (*ways(schema), *ways(inside(schema))):
        with pytest.raises(RequestRefused) as refused:
            parse({**CHAT, **fields})
        assert refused.value.param in fields


@pytest.mark.parametrize(
    "fields", [{"structured_outputs": {"regex": "a{9999}"}}, {"guided_regex": "(ab){3,4000}"}]
)
def test_a_pattern_of_its_own_is_bounded_too(fields):
    with pytest.raises(RequestRefused):
        parse({**CHAT, **fields})


def test_many_patterns_count_together():
    schema = {"type": "object", "properties": {f"p{it}": {"pattern": "a{1000}"} for it in range(11)}}
    with pytest.raises(RequestRefused):
        parse({**CHAT, "guided_json": schema})


def test_an_escaped_name_hides_nothing():
    body = rb'{"model":"m","messages":[],"guided_json":{"type":"array","min\u0049tems":1000000000}}'
    with pytest.raises(RequestRefused):
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
