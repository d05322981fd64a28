"""Bounds what a client's schemas and patterns may make an engine unroll.

Engines turn them into grammars in the process that answers everybody: vLLM 0.32 asks for gigabytes, and dies
of it, over an array of a billion items, and stands still for eight seconds over the pattern a{10000}. Whether
a schema makes sense otherwise is the engine's to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from phasewise.errors import RefusalKind, RequestRefused

MOST_ITEMS = 10_000
MOST_REPEATS_SQUARED = 10**7
"""Turning a{n} into a grammar takes time that grows with the square of n: 0.09 s for 1,000, 0.8 s for 3,000.
So the squares of all numbers of repeats in a request are added up."""

SCHEMA_FIELDS = ("response_format", "structured_outputs", "tools", "guided_json", "guided_regex")
_COUNTS = ("minItems", "maxItems")
_PATTERNS = ("pattern", "regex", "guided_regex", "whitespace_pattern")
_SIGNS = (b"Items", b"pattern", b"regex", b"\\")
_REPEATS = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


def check_schemas(fields: dict[str, Any], body: bytes) -> None:
    """Refuse a request whose schemas would be too large once unrolled."""
    given = [name for name in SCHEMA_FIELDS if fields.get(name) is not None]
    # Names may be escaped, and schemas may be strings of JSON: a backslash could hide either.
    if not given or not any(sign in body for sign in _SIGNS):
        return
    squares = 0
    for name in given:
        for key, value in _entries(name, fields[name]):
            if key in _COUNTS and isinstance(value, int | float) and value > MOST_ITEMS:
                raise _refused(f"{key} is over {MOST_ITEMS} in a schema", name)
            if key in _PATTERNS and isinstance(value, str):
                squares += sum(int(count or 0) ** 2 for pair in _REPEATS.findall(value) for count in pair)
                if squares > MOST_REPEATS_SQUARED:
                    raise _refused("patterns repeat something too often", name)


def _entries(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Every key and value in it, however deep; a schema that comes as a string of JSON is read."""
    waiting: list[tuple[str, object]] = [(name, value)]
    while waiting:
        key, value = waiting.pop()
        yield key, value
        if isinstance(value, str) and key in {"json", "guided_json", "structural_tag"}:
            value = _parsed(value)
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += ((key, item) for item in value if isinstance(item, dict | list))


def _parsed(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _refused(message: str, param: str) -> RequestRefused:
    return RequestRefused(RefusalKind.BAD_REQUEST, message, param=param)
