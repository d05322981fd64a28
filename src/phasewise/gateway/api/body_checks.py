"""Checks what a body may hold: bounds for the parser, parameters of KV transfers, a conversation's turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request_fields import CLOSED_BECAUSE, fields_where

LARGEST_NUMBER = 2**63 - 1
"""The engine checks values, except those that it answers with a 5xx: vLLM 0.32 does so if structured_outputs
is not an object or a number does not fit. A client's mistake must not make a worker look unhealthy."""


def bad_request(message: str, param: str | None = None, hint: str | None = None) -> RequestRejected:
    """The rejection of a body that cannot be served as it is."""
    return RequestRejected(RejectionKind.BAD_REQUEST, message, param=param, hint=hint)


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
            raise bad_request(f"the body has more than {MOST_CONTAINERS} lists and objects")
        if values > MOST_VALUES:
            raise bad_request(f"the body has more than {MOST_VALUES} values")


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
    raise bad_request(f"the body is nested more than {DEEPEST} deep")


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


# --- Parameters of transfers between engines, which say whose memory an engine reads.

_TRANSFER = frozenset(fields_where(lambda row: row.type == "never"))
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


# --- The turns of a conversation: what they hold beside text, and which tools they bring.

MEDIUM_AS_TEXT_BYTES = 4096
"""The most bytes that an image or a recording counts for: it becomes some hundred to a few thousand tokens,
whatever its size."""

_TEXT_PART = frozenset({"type", "text"})
_CLIENTS_TOOLS = frozenset({"function", "custom", "namespace"})
"""The types of tools that a client runs. An engine, or a server that it knows, would run the others."""


def check_media(
    turns: object, name: str, keys: tuple[str, ...], *, lends_rights: bool = True
) -> tuple[bool, int]:
    """Reject parts with a URL, a reference into the engine's cache, or tensors. Turns have them under `keys`.

    The engine would fetch a URL from its own network, and its cache may hold another tenant's data. Where the
    gateway lends no rights, only the engine's files are closed. Checked after parsing, because an escaped
    letter could hide a name in the bytes. Returns whether all parts are text, and how many bytes of the
    others do not count as text.
    """
    if not isinstance(turns, list):
        return True, 0
    only_text, media_bytes = True, 0
    for place, turn in enumerate(turns):
        for key in keys if isinstance(turn, dict) else ():
            parts = turn.get(key)
            if isinstance(parts, dict):
                parts = [parts]
            if not isinstance(parts, list):
                continue
            for index, part in enumerate(parts):
                # Fields are looked at too: engines use them if there is no type.
                if isinstance(part, dict) and not part.keys() <= _TEXT_PART:
                    only_text = False
                    media_bytes += _check_part(part, f"{name}[{place}].{key}[{index}]", lends_rights)
                elif not isinstance(part, dict) or part.get("type", "text") != "text":
                    only_text = False
    return only_text, media_bytes


def check_items(items: object) -> None:
    """Reject what vLLM 0.32 answers with a 5xx, at /v1/responses: a turn without anything in it."""
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("content") == []:
            param = f"input[{place}].content"
            raise bad_request(f"{param} is empty", param, "leave the turn out")


def check_tools(tools: object, place: str = "tools") -> None:
    """Reject tools that an engine would run, at /v1/responses."""
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            param = f"{place}[{index}]"
            if str(tool.get("type")) not in _CLIENTS_TOOLS:
                raise bad_request(
                    f"{param}.type is not function, custom or namespace",
                    f"{param}.type",
                    "no engine here runs tools: send functions, and run them yourself",
                )
            check_tools(tool.get("tools"), f"{param}.tools")


def tools_in(messages: object) -> Iterator[object]:
    """The tools that messages of /v1/messages define."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and "tool" in block:
                yield block["tool"]


_INLINE = {
    True: 'send the data itself: {"type": "base64", "media_type": ..., "data": ...}',
    False: "send the data itself, as a data: URL",
}
"""How a medium is sent to Anthropic's endpoints, and to OpenAI's."""


def _check_part(part: dict[str, Any], place: str, lends_rights: bool) -> int:
    # By the fields, whatever the part's type: engines use the fields if there is no type.
    media_bytes = 0
    for name, held in part.items():
        param = f"{place}.{name[:64]}"
        if lends_rights and name == "uuid":
            cached = "it names what the engine has cached, maybe for others"
            raise bad_request(f"{param} is closed: {cached}", param)
        is_tensor = name.endswith("_embeds") or (name == "type" and str(held).endswith("_embeds"))
        if lends_rights and is_tensor:
            raise bad_request(f"{param} is closed: the engine loads tensors from it", param)
        if name in {"input_audio", "source"} or name.endswith("url"):
            if not _begins_with(held, ("data:",) if lends_rights else ("data:", "http:", "https:")):
                closed = (
                    "is an address, which an engine would fetch from its own network"
                    if lends_rights
                    else "is neither an http, an https nor a data: URL"
                )
                raise bad_request(f"{param} {closed}", param, _INLINE[name == "source"])
            media_bytes += _beyond_its_tokens(held)
        elif name == "content" and isinstance(held, list):
            media_bytes += sum(
                _check_part(inner, f"{param}[]", lends_rights) for inner in held if isinstance(inner, dict)
            )
    return media_bytes


def _beyond_its_tokens(media: object) -> int:
    held = media.values() if isinstance(media, dict) else (media,)
    data_bytes = sum(len(data) for data in held if isinstance(data, str))
    return max(0, data_bytes - MEDIUM_AS_TEXT_BYTES)


def _begins_with(media: object, schemes: tuple[str, ...]) -> bool:
    url = media.get("url") if isinstance(media, dict) else media
    return url is None or (isinstance(url, str) and url[:6].lower().startswith(schemes))
