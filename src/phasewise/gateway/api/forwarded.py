"""Reads requests to forwarded paths, whose fields are unknown: their model, and what must not pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import Endpoint
from phasewise.gateway.api.body_checks import (
    MEDIUM_AS_TEXT_BYTES,
    bad_request,
    check_depth,
    check_json_bounds,
    check_transfer,
    may_name_transfer,
)
from phasewise.gateway.api.fields import (
    ENGINE_CONTROLS,
    MODEL_NAME_LIMIT,
    TEMPLATE_CONTROLS,
    Parsed,
    object_in,
)
from phasewise.gateway.api.reading_process import Weight
from phasewise.gateway.server.client import Scope
from phasewise.scheduling.world import ClusterView

MOST_PARTS = 1_000
LONGEST_PART_HEAD = 8_192

_BOUNDARY = re.compile(rb'boundary=(?:"([^"\\\s]{1,70})"|([^"\\\s;]{1,70}))\s*+', re.IGNORECASE)
_DISPOSITION = re.compile(
    rb'form-data\s*+;\s*+name=(?:"([^"\\]*+)"|([^\s";]++))'
    rb'(\s*+;\s*+filename\*?+=(?:"(?:[^"\\]|\\.)*+"|[^\s";]++))*+\s*+',
    re.IGNORECASE,
)
"""Strict, so that engines cannot read another name out of it."""


def parse_json(body: bytes, *, lends_rights: bool, judge: Callable[[Weight], None] | None = None) -> Parsed:
    """Check a JSON object, or an empty body; raises RequestRejected. `judge` is as in `parse_body`."""
    if not body:
        return _parsed({}, body, 0, takes_salt=False)
    fields = object_in(body)
    values, transfer = check_depth(fields), may_name_transfer(body)
    if judge is not None:
        judge(Weight.of(Endpoint.FORWARDED, body, values, with_schemas=False))
    if transfer:
        # Of fields given twice only the last is looked at.
        check_transfer(fields)
        body = orjson.dumps(fields)
    return _parsed(fields, body, _check(fields, lends_rights=lends_rights), takes_salt=bool(fields))


def form_boundary(content_type: bytes | None) -> bytes | None:
    """What separates the parts of a form; None if the body is no form."""
    kind, *parameters = (content_type or b"").split(b";")
    if kind.strip().lower() != b"multipart/form-data":
        return None
    found = [match for parameter in parameters if (match := _BOUNDARY.fullmatch(parameter.strip()))]
    if len(found) != 1:
        raise bad_request("the form's content-type names no boundary, or several")
    return found[0][1] or found[0][2]


def parse_form(body: bytes, boundary: bytes, *, lends_rights: bool) -> Parsed:
    """Check a form, as it is sent with an audio file; raises RequestRejected."""
    fields: dict[str, str] = {}
    file_bytes = 0
    for name, held, is_file in _parts(body, b"--" + boundary):
        if name in fields and name == "model":
            raise bad_request("the form names two models", name)
        fields[name] = "" if is_file else held.decode(errors="replace")
        file_bytes += len(held) if is_file else 0
        given = {name: _read(fields[name])}
        check_transfer(given)
        _check(given, lends_rights=lends_rights)
    asked = {**fields, "stream": fields.get("stream", "").lower() in {"true", "1", "on", "yes"}}
    return _parsed(asked, body, max(0, file_bytes - MEDIUM_AS_TEXT_BYTES), takes_salt=False)


def _parsed(fields: dict[str, Any], body: bytes, media_bytes: int, *, takes_salt: bool) -> Parsed:
    model = fields.get("model")
    if model is not None and not (isinstance(model, str) and len(model) <= MODEL_NAME_LIMIT):
        raise bad_request("model must be the name of a model", "model")
    return Parsed(
        model=model or "",
        stream=fields.get("stream") is True,
        max_output_tokens=0,
        hide_usage=False,
        upstream_body=body,
        media_bytes=media_bytes,
        takes_salt=takes_salt,
    )


def _check(fields: dict[str, Any], *, lends_rights: bool) -> int:
    """Reject what must not reach the engine, at any depth; returns the bytes of media that are no text."""
    waiting: list[tuple[str, Any]] = [("", fields)]
    media_bytes = 0
    while waiting:
        outer, held = waiting.pop()
        closed = TEMPLATE_CONTROLS if outer == "chat_template_kwargs" else ENGINE_CONTROLS
        for name, value in held.items() if isinstance(held, dict) else ((outer, item) for item in held):
            is_control = name in closed or name == "uuid" or name.endswith("_embeds")
            if (lends_rights and is_control) or _is_closed_address(name, value, lends_rights):
                raise bad_request(f"{name[:64]} is closed on this path", name[:64], "leave it out")
            if isinstance(value, dict | list):
                waiting.append((name, value))
            elif isinstance(value, str) and (name == "data" or value[:5].lower() == "data:"):
                media_bytes += max(0, len(value) - MEDIUM_AS_TEXT_BYTES)
    return media_bytes


def _is_closed_address(name: str, value: object, lends_rights: bool) -> bool:
    """Whether an engine would load it from a file, or from its own network for a client who cannot."""
    if not isinstance(value, str) or not name.endswith("url"):
        return False
    scheme = value.lstrip()[:5].lower()
    return scheme != "data:" if lends_rights else scheme == "file:"


def _read(text: str) -> object:
    """The object or list that a form's field holds, if it does."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    check_json_bounds(body := text.encode())
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return text
    check_depth(found)
    return found


def _parts(body: bytes, delimiter: bytes) -> Iterator[tuple[str, bytes, bool]]:
    """The parts of a form: a name, what it holds, and whether that is a file."""
    end = 0 if body.startswith(delimiter) else -1
    delimiter_size, between = len(delimiter), b"\r\n" + delimiter
    for _ in range(MOST_PARTS + 1):
        begin = end + delimiter_size
        if end >= 0 and body.startswith(b"--", begin):
            return
        head_end = body.find(b"\r\n\r\n", begin, begin + LONGEST_PART_HEAD)
        end = body.find(between, head_end + 4) + 2
        if head_end < 0 or end < 2 or not body.startswith(b"\r\n", begin):
            break
        name, is_file = _head(body[begin + 2 : head_end])
        yield name, body[head_end + 4 : end - 2], is_file
    raise bad_request("the body is not a form", hint="send multipart/form-data as OpenAI's clients do")


def _head(head: bytes) -> tuple[str, bool]:
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    named = [value.strip() for key, _, value in lines if key.lower() == b"content-disposition"]
    found = _DISPOSITION.fullmatch(named[0]) if len(named) == 1 else None
    if found is None:
        raise bad_request("a part of the form has no plain name")
    name: bytes = found[1] if found[1] is not None else found[2]
    return name.decode(errors="replace"), found[3] is not None


# --- Where it goes.


def only_model(cluster: ClusterView, scope: Scope) -> str:
    """The model of the only engine, for a request that names none; raises RequestRejected."""
    states = cluster.snapshot()
    if len(states) == 1:
        return states[0].worker.model
    if scope["method"] == "POST":
        message = f"the request names no model, and there are {len(states)} engines"
        raise bad_request(message, "model", "name one in `model`; GET /v1/models lists them")
    message = f"GET {scope['path']} is the answer of one engine, and there are {len(states)}"
    raise RequestRejected(RejectionKind.NOT_FOUND, message, hint="ask an engine itself")


def target(scope: Scope) -> tuple[str, str]:
    """The method and the path, with its query, for the engine."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    query: bytes = scope["query_string"]
    return method, f"{scope['path']}?{query.decode('ascii')}" if query else scope["path"]
