"""Whatever another version has written of a lesson: what is read of it is a lesson, or nothing."""

from dataclasses import asdict, fields, replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.semantic_match.lessons import Lesson, LessonKind, read_lesson, write_lesson

WHOLE = Lesson("t1/n1/m", 11, "xa b", True, 1.5, "b", "k1", "k0")
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def written(**changes):
    """The lesson with other fields; those that are `...` are left out."""
    return orjson.dumps({name: it for name, it in {**asdict(WHOLE), **changes}.items() if it is not ...})


@pytest.mark.parametrize("kind", LessonKind)
def test_what_was_written_is_read(kind):
    lesson = replace(WHOLE, kind=kind, domain="t2/ünï/m", region=0, right=False)
    read = read_lesson(write_lesson(lesson))
    assert read == lesson
    assert read.kind is kind


def test_the_fields_are_written_by_name():
    """Gateways of two versions share a log."""
    assert write_lesson(WHOLE) == (
        b'{"domain":"t1/n1/m","region":11,"change":"xa b","right":true,"at_unix_s":1.5,'
        b'"basis":"b","asked":"k1","stored":"k0","kind":"match","stands_for":1.0}'
    )
    assert write_lesson(WHOLE) == written()


def test_a_whole_number_passes_for_a_time():
    assert read_lesson(written(at_unix_s=2)) == replace(WHOLE, at_unix_s=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"right": "x"},
        {"right": 1},
        {"at_unix_s": None},
        {"at_unix_s": True},
        {"at_unix_s": "soon"},
        {"domain": 5},
        {"asked": 7},
        {"change": None},
        {"region": ["unhashable"]},
        {"kind": "hunch"},
        {"kind": None},
        {"kind": []},
        {"cell": "form/known"},
        *({field.name: ...} for field in fields(Lesson)),
    ],
    ids=str,
)
def test_a_lesson_with_other_fields_types_or_kinds_is_none(changes):
    assert read_lesson(written(**changes)) is None


@given(text=st.binary(max_size=20) | _json.map(orjson.dumps))
@settings(max_examples=50)
def test_whatever_else_a_store_holds_is_none(text):
    assert read_lesson(text) is None


@given(name=st.sampled_from([field.name for field in fields(Lesson)]), value=_json)
@settings(max_examples=100)
def test_whatever_is_read_can_be_written(name, value):
    lesson = read_lesson(written(**{name: value}))
    if lesson is not None:
        assert lesson == replace(WHOLE, **{name: value})
        assert read_lesson(write_lesson(lesson)) == lesson
