"""Bounds what a body may make the parser build, and what its schemas may make an engine unroll.

Engines compile schemas into grammars in the process that serves all requests: vLLM 0.32 runs out of memory on
an array of a billion items, and hangs for eight seconds on the pattern a{10000}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request_fields import CLOSED_BECAUSE, fields_where

# --- Bounds the number of JSON containers and values, before parsing, and the depth.
#
# Parsing blocks the event loop, even in another thread, because the parser holds the interpreter's lock: 70
# ms for a MiB of empty lists, 2 ms for a MiB of text. So lists, objects and values are counted first, in
# linear time.

MOST_CONTAINERS = 20_000
"""Lists and objects in a body. A conversation of 2,000 messages with tool calls has about 10,000."""
MOST_VALUES = 1_000_000
"""Values in lists and objects: a million token ids."""
DEEPEST = 64
"""How deep a body may be nested. Engines walk schemas and messages recursively, and answer a too deep one
with a 5xx, which makes the worker look unhealthy."""
_FEW = 256

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""An unterminated string extends to the end; otherwise the search would start again within it."""


def check_json_bounds(body: bytes) -> None:
    """Reject a body with too many lists, objects or values. A small body costs nothing."""
    size = len(body)
    too_many = size > 2 * MOST_CONTAINERS and count_of(body, b"[") + count_of(body, b"{") > MOST_CONTAINERS
    if not too_many and (size <= 2 * MOST_VALUES or count_of(body, b",") <= MOST_VALUES):
        return
    # Count again without brackets and commas in strings.
    containers = values = 0
    for between in _outside_strings(body):
        containers += between.count(b"[") + between.count(b"{")
        values += between.count(b",")
        if containers > MOST_CONTAINERS:
            raise _too_many(f"the body has more than {MOST_CONTAINERS} lists and objects")
        if values > MOST_VALUES:
            raise _too_many(f"the body has more than {MOST_VALUES} values")


def check_depth(value: dict[str, Any] | list[Any]) -> int:
    """Reject a value that is nested too deep. Returns how many values are in it."""
    level: list[Any] = [value]
    values = 0
    for _ in range(DEEPEST):
        values += sum(map(len, level))
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return values
    raise _too_many(f"the body is nested more than {DEEPEST} deep")


def count_of(body: bytes, mark: bytes) -> int:
    """How often the mark occurs in the body. Finding a few is much faster than counting all."""
    at = -1
    for found in range(_FEW):
        at = body.find(mark, at + 1)
        if at < 0:
            return found
    return body.count(mark)


def _outside_strings(body: bytes) -> Iterator[bytes]:
    begin = 0
    for string in _STRING.finditer(body):
        yield body[begin : string.start()]
        begin = string.end()
    yield body[begin:]


def _too_many(message: str) -> RequestRejected:
    return RequestRejected(RejectionKind.BAD_REQUEST, message)


# --- Parameters of transfers between engines, which say whose memory an engine reads.

_TRANSFER = frozenset(fields_where(lambda it: it.type == "never"))
_TRANSFER_SIGN = b"_transfer_params"
_ESCAPED_LETTERS = (b"\\u005", b"\\u006", b"\\u007")
"""Ordinary writers escape none of the letters of these names."""


def may_name_transfer(body: bytes) -> bool:
    """Whether a body, JSON or a form, may name these parameters; few others do."""
    return _TRANSFER_SIGN in body or (
        b"\\u00" in body and any(letters in body for letters in _ESCAPED_LETTERS)
    )


def check_transfer(fields: dict[str, Any]) -> None:
    """Reject parsed JSON with such parameters at any depth: engines merge objects of several fields."""
    waiting: list[Any] = [fields]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for name in _TRANSFER & value.keys():
                if value[name] is not None:
                    raise RequestRejected(
                        RejectionKind.BAD_REQUEST,
                        f"{name} is closed: {CLOSED_BECAUSE[name]}, so only the gateway sets it",
                        param=name,
                        hint="leave it out",
                    )
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


LARGEST_NUMBER = 2**63 - 1
"""The engine checks values, except those that it answers with a 5xx: vLLM 0.32 does so if structured_outputs
is not an object or a number does not fit. A client's mistake must not make a worker look unhealthy."""
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


def check_schemas(fields: dict[str, Any], body: bytes, names: Iterable[str]) -> None:
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
                    raise _rejected("a schema has too large a number", name)
                if key in _COUNTS and value > MOST_ITEMS:
                    raise _rejected(f"{key} is over {MOST_ITEMS} in a schema", name)
            for pattern in _patterns(key, value):
                length += len(pattern)
                if length > MOST_PATTERN_CHARS:
                    raise _rejected(f"patterns are longer than {MOST_PATTERN_CHARS} characters", name)
                squares += _repeats_squared(pattern)
                if squares > MOST_REPEATS_SQUARED:
                    raise _rejected("patterns repeat something too often", name)


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
        raise _rejected("a schema in a string is not JSON", name) from None
    if isinstance(schema, dict | list):
        check_depth(schema)
    return schema


def _rejected(message: str, param: str) -> RequestRejected:
    return RequestRejected(RejectionKind.BAD_REQUEST, message, param=param)
