"""Whatever stands in Redis: what is read of it has the types it should have, or it is not there."""

from __future__ import annotations

from dataclasses import asdict, replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.clients.redis_answers import read_answer
from tests.contract.answer_store import answer

WHOLE = answer(tags=("a", "b"), prompt_tokens=7, output_tokens=4, start_s=0.5, stream_s=1)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)  # JSON has neither
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def written(noun, **changes):
    return orjson.dumps({**asdict(noun), **changes})


def test_what_was_written_is_read():
    assert read_answer(written(WHOLE)) == WHOLE
    bare = answer()
    assert read_answer(written(bare)) == bare


@pytest.mark.parametrize(
    "changes",
    [
        {"text": None},
        {"text": 5},
        {"question": None},
        {"made_unix_s": None},
        {"made_unix_s": True},
        {"expires_unix_s": "soon"},
        {"output_tokens": "7"},
        {"output_tokens": 7.5},
        {"start_s": "x"},
        {"tags": None},
        {"tags": "ab"},
        {"tags": ["a", 1]},
        {"vector": [1.0]},
        {"of_tomorrow": 1},
    ],
    ids=str,
)
def test_an_answer_of_other_types_is_none(changes):
    assert read_answer(written(WHOLE, **changes)) is None


@given(text=st.binary(max_size=20) | _json.map(lambda it: orjson.dumps(it, option=orjson.OPT_NON_STR_KEYS)))
@settings(max_examples=50)
def test_nothing_that_redis_can_hold_raises(text):
    assert read_answer(text) is None


@given(name=st.sampled_from(sorted(asdict(WHOLE))), value=_json)
@settings(max_examples=100)
def test_whatever_is_read_can_be_given_again(name, value):
    read = read_answer(written(WHOLE, **{name: value}))
    if read is not None:
        assert read == replace(WHOLE, **{name: tuple(value) if name == "tags" else value})
        assert isinstance(read.text + read.question + "".join(read.tags), str)
        assert read.expires_unix_s - read.made_unix_s is not None
