"""Traces of real traffic: when requests arrived, how long they were, and which prefixes they shared.

Two published formats are read, distinguished by their first line. Traces hold no text.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import orjson

from phasewise.core.errors import ConfigError

BLOCK_TOKENS = 512
"""The tokens of one of Mooncake's ids, unless the lines say otherwise in `block_tokens`."""
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
ACCEPTED = (
    f"an Azure CSV begins with {','.join(AZURE_COLUMNS)}; a Mooncake JSONL line has timestamp (ms), "
    "input_length, output_length and hash_ids, and block_tokens if an id is not 512 tokens; a "
    "recorded timeline begins with its version, v"
)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace.

    `block_ids` name the prompt's blocks in order, the last one possibly cut: requests that begin with the
    same ids begin with the same text. Tokens beyond these blocks are the request's own.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests by time, the first one at 0."""

    name: str
    requests: tuple[TracedRequest, ...] = field(repr=False)
    block_tokens: int = BLOCK_TOKENS


class _Unusable(Exception):
    """What is wrong with one row, to be reported with the file's name and the row's number."""


_Lines = Iterator[tuple[int, str]]
_Parse = Callable[[str], TracedRequest]


def read_trace(path: Path) -> Trace:
    """Read a trace in either format."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = ((number, line.strip()) for number, line in enumerate(file, 1) if line.strip())
            requests, block_tokens = _requests(path, lines)
    except OSError as error:
        raise ConfigError(
            f"the trace {path} cannot be read ({error.strerror})", hint="give another file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the trace {path} is not text", hint=ACCEPTED) from error
    if not requests:
        raise ConfigError(f"the trace {path} holds no requests", hint=ACCEPTED)
    in_order = sorted(requests, key=lambda request: request.at_s)
    from_zero = (replace(request, at_s=request.at_s - in_order[0].at_s) for request in in_order)
    return Trace(path.stem, tuple(from_zero), block_tokens)


def mooncake_lines(trace: Trace) -> Iterator[bytes]:
    """The trace in Mooncake's format, one line per request."""
    for request in trace.requests:
        facts: dict[str, object] = {
            "timestamp": round(request.at_s * 1000, 1),
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "hash_ids": request.block_ids,
        }
        if trace.block_tokens != BLOCK_TOKENS:
            facts["block_tokens"] = trace.block_tokens
        yield orjson.dumps(facts) + b"\n"


def _requests(path: Path, lines: _Lines) -> tuple[list[TracedRequest], int]:
    """Every request, and how many tokens one of their ids covers."""
    parse: _Parse | None = None
    requests: list[TracedRequest] = []
    block_tokens = BLOCK_TOKENS
    for number, line in lines:
        try:
            if parse is None and line.startswith("{"):
                block_tokens = _block_tokens(_json_object(line))
                parse = partial(_mooncake_request, block_tokens)
            if parse is not None:
                requests.append(parse(line))
            else:
                parse = partial(_azure_request, _azure_columns(line))
        except _Unusable as error:
            raise ConfigError(f"{path}, line {number}: {error}", hint=ACCEPTED) from error
    return requests, block_tokens


def _azure_columns(header: str) -> tuple[int, ...]:
    names = _cells(header)
    if not set(AZURE_COLUMNS) <= set(names):
        raise _Unusable("neither a known header nor a request")
    return tuple(names.index(column) for column in AZURE_COLUMNS)


def _azure_request(columns: tuple[int, ...], line: str) -> TracedRequest:
    cells = _cells(line)
    if len(cells) <= max(columns):
        raise _Unusable(f"{len(cells)} columns are too few")
    time, prompt, output = (cells[column] for column in columns)
    try:
        # The parser cuts digits beyond the microsecond. No zone means UTC: a local hour may be missing.
        at = datetime.fromisoformat(time)
        at_s = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise _Unusable(f"TIMESTAMP is {_shown(time)}, not a time") from error
    return TracedRequest(
        at_s, _count("ContextTokens", _number(prompt), 1), _count("GeneratedTokens", _number(output), 0)
    )


def _cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True))]
    except csv.Error as error:
        raise _Unusable(f"not a line of a CSV ({error})") from error


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text


def _json_object(line: str) -> dict[str, Any]:
    try:
        facts = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _Unusable("not a JSON object") from error
    if not isinstance(facts, dict):
        raise _Unusable("not a JSON object")
    return facts


def _block_tokens(facts: dict[str, Any]) -> int:
    return _count("block_tokens", facts.get("block_tokens", BLOCK_TOKENS), 1)


def _mooncake_request(block_tokens: int, line: str) -> TracedRequest:
    facts = _json_object(line)
    if (said := _block_tokens(facts)) != block_tokens:
        raise _Unusable(f"block_tokens is {said}, and {block_tokens} in the first line")
    at_ms = facts.get("timestamp")
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not isfinite(at_ms):
        raise _Unusable(f"timestamp is {_shown(at_ms)}, not milliseconds")
    prompt_tokens = _count("input_length", facts.get("input_length"), 1)
    output_tokens = _count("output_length", facts.get("output_length"), 0)
    block_ids = _block_ids(facts.get("hash_ids", []), prompt_tokens, block_tokens)
    return TracedRequest(at_ms / 1000, prompt_tokens, output_tokens, block_ids)


def _block_ids(ids: object, prompt_tokens: int, block_tokens: int) -> tuple[int, ...]:
    if not isinstance(ids, list) or any(type(block) is not int for block in ids):
        raise _Unusable(f"hash_ids is {_shown(ids)}, not a list of integers")
    complete, rest = divmod(prompt_tokens, block_tokens)
    # Some leave out the id of a last block that is not full. Other numbers mean another block size.
    if ids and not complete <= len(ids) <= complete + (rest > 0):
        raise _Unusable(f"{len(ids)} hash_ids for {prompt_tokens} tokens: one covers {block_tokens}")
    return tuple(ids)


def _count(name: str, value: object, least: int) -> int:
    if type(value) is not int or value < least:
        raise _Unusable(f"{name} is {_shown(value)}, not a number of tokens from {least} up")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
