"""What the cache learns about semantic matches, and how it is kept: as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum

import orjson

from phasewise.core.value import value


class LessonKind(StrEnum):
    """What was judged: a match of real questions, or a planted pair whose truth is known."""

    MATCH = "match"
    PLANTED_DIFFERENT = "planted_different"
    PLANTED_EQUAL = "planted_equal"


@value
class Lesson:
    """One outcome: what the judge said of a match, or whether it was right about a planted pair.

    `domain` is where it applies (one tenant, namespace and model, and no other), `region` the neighbourhood
    it counts in (0 if the match could not have been served), `change` keyed hashes of how the two questions
    differ, `asked` and `stored` the keys of their requests. `basis` names the judge and the rules; a lesson
    says nothing about others. `stands_for`: of so many matches, this one was judged. It contains no text.
    """

    domain: str
    region: int
    change: str
    right: bool
    at_unix_s: float
    basis: str = ""
    asked: str = ""
    stored: str = ""
    kind: LessonKind = LessonKind.MATCH
    stands_for: float = 1.0


_ACCEPTED: Mapping[str, frozenset[type]] = {
    "str": frozenset({str}),
    "bool": frozenset({bool}),
    "int": frozenset({int}),
    "float": frozenset({int, float}),
    "LessonKind": frozenset({str}),
}
"""The JSON types of each annotation; exact types, because a bool would pass for a number."""
_TYPES = {field.name: _ACCEPTED[str(field.type)] for field in fields(Lesson)}


def write_lesson(lesson: Lesson) -> bytes:
    """The lesson as it is kept."""
    return orjson.dumps(lesson)


def read_lesson(text: bytes) -> Lesson | None:
    """The lesson; None if it is not valid, because another version of phasewise may have written it."""
    try:
        written = orjson.loads(text)
        if not isinstance(written, dict) or written.keys() != _TYPES.keys():
            return None
        if any(type(written[name]) not in accepted for name, accepted in _TYPES.items()):
            return None
        return Lesson(**{**written, "kind": LessonKind(written["kind"])})
    except ValueError:
        return None
