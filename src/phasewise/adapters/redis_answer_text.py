"""Reads answers and lessons as Redis holds them: as JSON that another version of phasewise may have written.

What is not wholly of the types that this version gives on is as if it were not there. Writing is
redis_answers.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import orjson

from phasewise.model.caching import Lesson, StoredAnswer

_TYPES: Mapping[str, frozenset[type]] = {
    "str": frozenset({str}),
    "str | None": frozenset({str, type(None)}),
    "bool": frozenset({bool}),
    "int | None": frozenset({int, type(None)}),
    "int | str | None": frozenset({int, str, type(None)}),
    "float": frozenset({int, float}),
    "float | None": frozenset({int, float, type(None)}),
    "tuple[str, ...]": frozenset({list}),
    "Vector | None": frozenset({type(None)}),
}
"""What JSON makes of each; types themselves and not their heirs, as a bool would pass for a number."""
_OF_AN_ANSWER = {field.name: _TYPES[str(field.type)] for field in fields(StoredAnswer)}
_OF_A_LESSON = {field.name: _TYPES[str(field.type)] for field in fields(Lesson)}


def read_answer(text: bytes) -> StoredAnswer | None:
    """The answer, if it is one."""
    told = _read(text, _OF_AN_ANSWER)
    if told is None or any(type(tag) is not str for tag in told["tags"]):
        return None
    return StoredAnswer(**{**told, "tags": tuple(told["tags"])})


def read_lesson(text: bytes) -> Lesson | None:
    """The lesson, if it is one."""
    told = _read(text, _OF_A_LESSON)
    return None if told is None else Lesson(**told)


def _read(text: bytes, types: Mapping[str, frozenset[type]]) -> dict[str, Any] | None:
    try:
        told = orjson.loads(text)
    except ValueError:
        return None
    if not isinstance(told, dict) or told.keys() != types.keys():
        return None
    return told if all(type(told[name]) in accepted for name, accepted in types.items()) else None
