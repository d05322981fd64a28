"""Bounds what a request's schemas may make an engine unroll.

Engines compile schemas into grammars in the process that serves all requests: vLLM 0.32 runs out of memory on
an array of a billion items, and hangs for eight seconds on the pattern a{10000}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import orjson

from phasewise.gateway.api.body_checks import LARGEST_NUMBER, bad_request, check_depth, check_json_bounds

MOST_ITEMS = 10_000
MOST_REPEATS_SQUARED = 10**7
"""Compiling a{n} takes time that grows with the square of n: 0.09 s for 1,000, 0.8 s for 3,000. So the
squares of all repeats in a request are summed: how often each repeats something, times its own length, in
which repeats within it are written out."""

MOST_PATTERN_CHARS = 65_536
"""Of all patterns in a request together: scanning them blocks the event loop, even in a thread."""

_COUNTS = ("minItems", "maxItems")
_PATTERNS = ("pattern", "regex", "guided_regex", "whitespace_pattern")
_SIGNS = (b"Items", b"pattern", b"regex", b"json", b"structural_tag", b"\\")
_SHAPE = bytes(48 if 48 <= byte <= 57 else 101 if byte in b"eE" else 32 for byte in range(256))
"""Every digit becomes a 0, so that large numbers are found ten times as fast as by a pattern."""
_LARGE_NUMBERS = (b"0e", b"0" * 19)
_TOKENS = re.compile(
    r"\{\s*+(\d*+)\s*+,?+\s*+(\d*+)\s*+\}|(\()|(\))|([^\\\[{()]++)"
    r"|\\.|\[\^?+\]?+[^\]\\]*+(?:\\.[^\]\\]*+)*+\]?+",
    re.DOTALL,
)
"""Repeats, groups, letters, and what counts as one letter. Possessive throughout: with backtracking, a
client's text could keep it busy for minutes."""
_LONGEST = 10**6
_MOST_DIGITS = 5
"""A count with more digits is over the bound and is never converted."""


def check_schemas(fields: dict[str, object], body: bytes, names: Iterable[str]) -> None:
    """Reject a request whose schemas, in the fields of these names, would be too large once unrolled."""
    given = [name for name in names if fields.get(name) is not None]
    # Names may be escaped, and schemas may be JSON in strings: a backslash could hide either.
    if not given or not (any(sign in body for sign in _SIGNS) or _has_large_number(body)):
        return
    squares = length = 0
    for name in given:
        for key, value in _entries(name, fields[name]):
            if isinstance(value, int | float):
                if abs(value) > LARGEST_NUMBER:
                    raise bad_request("a schema has too large a number", name)
                if key in _COUNTS and value > MOST_ITEMS:
                    raise bad_request(f"{key} is over {MOST_ITEMS} in a schema", name)
            for pattern in _patterns(key, value):
                length += len(pattern)
                if length > MOST_PATTERN_CHARS:
                    raise bad_request(f"patterns are longer than {MOST_PATTERN_CHARS} characters", name)
                squares += _repeats_squared(pattern)
                if squares > MOST_REPEATS_SQUARED:
                    raise bad_request("patterns repeat something too often", name)


def _has_large_number(body: bytes) -> bool:
    shape = body.translate(_SHAPE)
    return any(number in shape for number in _LARGE_NUMBERS)


def _patterns(key: str, value: object) -> Iterable[str]:
    if key in _PATTERNS and isinstance(value, str):
        return (value,)
    # Here the names of properties are patterns.
    return value if key == "patternProperties" and isinstance(value, dict) else ()


def _repeats_squared(pattern: str) -> int:
    """The squares of all its repeats, each as long as it is when written out."""
    if "{" not in pattern:
        return 0
    squares = last = 0
    lengths = [0]
    for least, most, opens, closes, letters in _TOKENS.findall(pattern):
        if least or most:
            repeated = min(_LONGEST, last * max(_count_of(least), _count_of(most)))
            squares += repeated**2
            lengths[-1] += repeated - last
            last = repeated
        elif opens:
            lengths.append(0)
        elif closes:
            last = lengths.pop() if len(lengths) > 1 else 0
            lengths[-1] += last
        else:
            last = 1
            lengths[-1] += len(letters) or 1
    return squares


def _count_of(digits: str) -> int:
    digits = digits.lstrip("0")
    return _LONGEST if len(digits) > _MOST_DIGITS else int(digits or 0)


def _entries(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Every key and value in it, at any depth; a schema in a JSON string is parsed."""
    waiting: list[tuple[str, object]] = [(name, value)]
    while waiting:
        key, value = waiting.pop()
        yield key, value
        if isinstance(value, str) and key in {"json", "guided_json", "structural_tag"}:
            value = _parsed(value, name)
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += ((key, item) for item in value if isinstance(item, dict | list))


def _parsed(text: str, name: str) -> object:
    """Parse a schema in a string. Invalid JSON is rejected, because engines may accept more."""
    body = text.encode()
    check_json_bounds(body)
    try:
        schema = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise bad_request("a schema in a string is not JSON", name) from None
    if isinstance(schema, dict | list):
        check_depth(schema)
    return schema
