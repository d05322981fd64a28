"""Bodies that would keep the JSON parser busy are rejected before it sees them; texts of brackets are not."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.errors import RequestRejected
from phasewise.core.request import Endpoint
from phasewise.gateway.api.body_checks import (
    MOST_CONTAINERS,
    MOST_VALUES,
    _outside_strings,
    check_json_bounds,
)
from phasewise.gateway.api.fields import MOST_EMBEDDED, parse_body

CODE = 'if (a[i] != "{") { b[i] = {}; } // \\"[\n'


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b"[]," * MOST_CONTAINERS + b"{}]}",
        b'{"messages":[' + b'{"a":"]"},' * MOST_CONTAINERS + b"{}]}",
        b'{"prompt":[' + b"1," * MOST_VALUES + b"1,1]}",
        b'{"input":[' + b'"",' * MOST_VALUES + b'"",""]}',
        b"[" * 2**20,
        # A text that never ends hides nothing after it, but what stands before it counts.
        b"[" * (2 * MOST_CONTAINERS) + b'"' + b'\\"' * 100_000,
    ],
    ids=["lists", "objects", "numbers", "texts", "open lists", "an open text"],
)
def test_more_lists_objects_or_values_than_any_request_needs_are_rejected(body):
    with pytest.raises(RequestRejected, match="more than"):
        check_json_bounds(body)


def test_brackets_and_commas_in_texts_do_not_count():
    long = CODE * 60_000
    fields = {"model": "m", "messages": [{"role": "user", "content": long}]}
    assert parse_body(Endpoint.CHAT, orjson.dumps(fields)).fields == fields


def test_a_million_token_ids_are_no_attack():
    check_json_bounds(orjson.dumps({"prompt": [50_000] * (MOST_VALUES - 10)}))


@given(st.recursive(st.text() | st.booleans() | st.none(), st.lists, max_leaves=20))
def test_what_is_counted_is_what_the_parser_would_build(value):
    outside = b"".join(_outside_strings(orjson.dumps(value)))
    assert outside.count(b"[") == _lists(value)
    assert b'"' not in outside


def _lists(value):
    return 1 + sum(map(_lists, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize(
    ("inputs", "sequences"),
    [("x", 1), (["x"] * 3, 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (["x"] * MOST_EMBEDDED, MOST_EMBEDDED)],
)
def test_every_input_of_an_embeddings_request_is_a_sequence(inputs, sequences):
    body = orjson.dumps({"model": "m", "input": inputs})
    assert parse_body(Endpoint.EMBEDDINGS, body).choices == sequences


def test_more_inputs_than_openai_takes_are_rejected_by_name():
    body = orjson.dumps({"model": "m", "input": ["x"] * (MOST_EMBEDDED + 1)})
    with pytest.raises(RequestRejected) as rejected:
        parse_body(Endpoint.EMBEDDINGS, body)
    assert rejected.value.param == "input"
