"""Checks a client's body by the table of fields, and builds the body for the engine.

Unknown fields and engine controls are rejected by name: some reach other hosts' memory or other tenants'
cache, or make the engine fetch a URL. The engine checks the values of allowed fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import orjson

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.prefixes import MARK_SIZES_BYTES, TEXT_FROM_BYTES, TEXT_LIMIT_BYTES
from phasewise.core.request import Endpoint
from phasewise.core.request_fields import PROMPT_FIELD, fields_where
from phasewise.core.value import value
from phasewise.gateway.api.body_checks import (
    DEEPEST,
    LARGEST_NUMBER,
    check_depth,
    check_json_bounds,
    check_schemas,
)
from phasewise.gateway.kv_transfer.bodies import splittable

# --- The text of a prompt as far as marks look at it, without the JSON around it.
#
# Escapes and field names would make unlike prompts look alike.


def prompt_text(endpoint: Endpoint, fields: dict[str, Any]) -> bytes:
    """The beginning of a request's text, message by message; empty for token ids."""
    prompt = fields.get(PROMPT_FIELD[endpoint])
    texts = _chat_texts(prompt) if endpoint is Endpoint.CHAT else _prompts(prompt)
    taken: list[str] = []
    left = TEXT_LIMIT_BYTES
    for text in texts:
        taken.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return "\n".join(taken).encode(errors="replace")


def _chat_texts(messages: object) -> Iterator[str]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from (
                part["text"]
                for part in content
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            )


def _prompts(prompt: object) -> Iterator[str]:
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        yield from (text for text in prompt if isinstance(text, str))


MODEL_NAME_LIMIT = 256
REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")

ALLOWED_FIELDS = {on: frozenset(fields_where(lambda it: it.is_passed_on, on)) for on in Endpoint}
IGNORED_FIELDS = {on: frozenset(fields_where(lambda it: it.type == "ignored", on)) for on in Endpoint}
"""OpenAI fields that no engine knows. They are removed from the body, and the response names them."""
ENGINE_CONTROLS = frozenset(fields_where(lambda it: it.type in {"rejected", "gateway"}))
"""Fields that the engine knows and clients may not set; listed for a clearer error message."""

# fmt: off
_RENDERER_CONTROLS = frozenset(
    {
        "tokenize", "conversation", "padding", "truncation", "max_length", "return_tensors", "return_dict",
        "return_assistant_tokens_mask", "tokenizer_kwargs",
    }
)
# fmt: on
TEMPLATE_CONTROLS = ENGINE_CONTROLS | _RENDERER_CONTROLS
"""What chat_template_kwargs may not hold: engines pass it to the function that renders the prompt, so it
would set that function's own parameters too."""

OBJECT_FIELDS = frozenset(fields_where(lambda it: it.type == "object"))
COUNT_FIELDS = fields_where(lambda it: it.type == "count")
MOST_OUTPUT_TOKENS = 2**31
"""No answer is longer; a larger limit would only let one request dominate every sum."""
MOST_CHOICES = 128
"""Each is a sequence in the engine, while the request takes one slot of the worker and of its key."""

MOST_EMBEDDED = 2048
"""Texts in one embeddings request, as in OpenAI's API. Each is a sequence too, but without a decode phase."""

MEDIUM_AS_TEXT_BYTES = 4096
"""The most bytes that an image or a recording counts for: it becomes some hundred to a few thousand tokens,
whatever its size."""

_TEXT_PART = frozenset({"type", "text"})
_PROMPT_NAME = {endpoint: b'"%b"' % name.encode() for endpoint, name in PROMPT_FIELD.items()}
_USAGE_WANTED = b',"stream_options":{"include_usage":true}}'


@value
class Parsed:
    """A request's body: what the gateway needs of it, and the bytes for the engine.

    `hide_usage`: the gateway asked for the usage chunk, not the client. `text` is the part of the prompt's
    text that is marked, empty in a short body. `splittable`: it may be disaggregated. `media_bytes` are
    images and audio beyond MEDIUM_AS_TEXT_BYTES each. `fields` is the parsed body without those that were
    `ignored`.
    """

    model: str
    stream: bool
    max_output_tokens: int | None
    hide_usage: bool
    upstream_body: bytes
    choices: int = 1
    text: bytes = b""
    splittable: bool = False
    media_bytes: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def parse_body(endpoint: Endpoint, body: bytes) -> Parsed:
    """Check a body's fields; raises RequestRejected."""
    check_json_bounds(body)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _bad("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise _bad("the body is not a JSON object")
    _check_depth(fields, body)
    ignored: tuple[str, ...] = ()
    if not fields.keys() <= ALLOWED_FIELDS[endpoint]:
        ignored = _take_out_ignored(endpoint, fields)
        body = orjson.dumps(fields)
    _check_values(fields)
    check_schemas(fields, body)
    media_bytes = 0
    if endpoint is Endpoint.CHAT:
        _check_template_kwargs(fields.get("chat_template_kwargs"))
        media_bytes = _check_media(fields.get("messages"))
    model = fields.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MODEL_NAME_LIMIT:
        raise _bad("model must be the name of a model", "model")
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _bad("stream must be true or false", "stream")
    hide_usage, upstream_body = _ask_for_usage(fields, body) if stream else (False, body)
    choices = _choices(endpoint, fields)
    return Parsed(
        model=model,
        stream=bool(stream),
        max_output_tokens=_output_limit(fields) if endpoint.generates else 0,
        hide_usage=hide_usage,
        upstream_body=upstream_body,
        choices=choices,
        text=b"" if len(body) < TEXT_FROM_BYTES else prompt_text(endpoint, fields),
        splittable=splittable(endpoint, fields, choices),
        media_bytes=media_bytes,
        fields=fields,
        ignored=ignored,
    )


def prompt_bytes(endpoint: Endpoint, body: bytes) -> bytes:
    """The part of the body that is marked, from the start of its prompt."""
    start = max(body.find(_PROMPT_NAME[endpoint]), 0)
    return body[start : start + MARK_SIZES_BYTES[-1]]


def request_id_from(value: bytes | None) -> str | None:
    """The client's own request id, if it is valid."""
    return value.decode() if value is not None and REQUEST_ID.fullmatch(value) else None


def _take_out_ignored(endpoint: Endpoint, fields: dict[str, Any]) -> tuple[str, ...]:
    others = [name for name in fields if name not in ALLOWED_FIELDS[endpoint]]
    for name in others:
        if name not in IGNORED_FIELDS[endpoint]:
            raise _rejected_field(name)
        del fields[name]
    return tuple(others)


def _ask_for_usage(fields: dict[str, Any], body: bytes) -> tuple[bool, bytes]:
    options = fields.get("stream_options")
    if "stream_options" not in fields:
        # Spliced in before the closing brace, so that a long prompt is not serialized again.
        return True, body.rstrip()[:-1] + _USAGE_WANTED
    if options is not None and options.get("include_usage") is True:
        return False, body
    # Without include_usage the engine would have ignored every other option, so none is kept.
    return True, orjson.dumps({**fields, "stream_options": {"include_usage": True}})


def _check_depth(fields: dict[str, Any], body: bytes) -> None:
    # Most bodies have fewer brackets than allowed levels and need no check. In long bodies counting the
    # brackets takes longer than the check.
    if len(body) < 4096 and body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    check_depth(fields)


def _check_values(fields: dict[str, Any]) -> None:
    for name, given in fields.items():
        kind = type(given)
        if name in OBJECT_FIELDS:
            if kind is dict:
                for inner in given.values():
                    _check_number(name, inner)
            elif given is not None:
                raise _bad(f"{name} must be an object", name)
        elif kind is list:
            for inner in given:
                _check_number(name, inner)
        else:
            _check_number(name, given)


def _check_number(name: str, value: object) -> None:
    if (type(value) is int or type(value) is float) and abs(value) > LARGEST_NUMBER:
        raise _bad(f"{name} is too large a number", name)


def _check_template_kwargs(kwargs: object) -> None:
    if isinstance(kwargs, dict) and not TEMPLATE_CONTROLS.isdisjoint(kwargs):
        name = next(name for name in kwargs if name in TEMPLATE_CONTROLS)
        raise _rejected_control(f"chat_template_kwargs.{name}")


def _check_media(messages: object) -> int:
    """Reject parts with a URL, a reference into the engine's cache, or tensors.

    The engine would fetch a URL from its own network, and its cache may hold another tenant's data. Checked
    after parsing, because an escaped letter could hide a name in the bytes. Returns how many bytes of the
    other parts do not count as text.
    """
    if not isinstance(messages, list):
        return 0
    media_bytes = 0
    for place, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for index, part in enumerate(content):
                if isinstance(part, dict) and not part.keys() <= _TEXT_PART:
                    media_bytes += _check_part(part, f"messages[{place}].content[{index}]")
    return media_bytes


def _check_part(part: dict[str, Any], place: str) -> int:
    # By the fields, whatever the part's type: engines use the fields if there is no type.
    media_bytes = 0
    for name, held in part.items():
        param = f"{place}.{name[:64]}"
        if name == "uuid" or name.endswith("_embeds") or (name == "type" and str(held).endswith("_embeds")):
            raise _rejected_control(param)
        if name == "input_audio" or name.endswith("url"):
            if not _is_inline(held):
                raise _bad(f"{param} is not a data: URL", param, hint="send the data itself as one")
            media_bytes += _beyond_its_tokens(held)
    return media_bytes


def _beyond_its_tokens(media: object) -> int:
    held = media.values() if isinstance(media, dict) else (media,)
    data_bytes = sum(len(it) for it in held if isinstance(it, str))
    return max(0, data_bytes - MEDIUM_AS_TEXT_BYTES)


def _is_inline(media: object) -> bool:
    url = media.get("url") if isinstance(media, dict) else media
    return url is None or (isinstance(url, str) and url[:5].lower() == "data:")


def _output_limit(fields: dict[str, Any]) -> int | None:
    for limit in (fields.get("max_completion_tokens"), fields.get("max_tokens")):
        if isinstance(limit, int) and limit > 0:
            return min(limit, MOST_OUTPUT_TOKENS)
    return None


def _choices(endpoint: Endpoint, fields: dict[str, Any]) -> int:
    """How many sequences are computed: the larger of `n` and `best_of`, for each prompt or input."""
    each, param = 1, PROMPT_FIELD[endpoint]
    most = MOST_CHOICES if endpoint.generates else MOST_EMBEDDED
    for name in COUNT_FIELDS:
        count = fields.get(name)
        if count is not None and type(count) is not int:
            # Engines accept "1000" and 1000.0 too.
            raise _bad(f"{name} must be a whole number", name)
        if count is not None and count > each:
            each, param = count, name
    choices, prompts = each, None if endpoint is Endpoint.CHAT else fields.get(PROMPT_FIELD[endpoint])
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        choices *= len(prompts)
    if choices > most:
        raise _bad(
            f"the request asks for {choices} answers; at most {most} are allowed",
            param,
            hint="send several requests",
        )
    return choices


def _rejected_field(name: str) -> RequestRejected:
    shown = name[:64]
    if name in ENGINE_CONTROLS:
        return _rejected_control(shown)
    return _bad(f"{shown!r} is not a field of this endpoint", shown)


def _rejected_control(name: str) -> RequestRejected:
    return _bad(f"{name} is set by the gateway, not by clients", name)


def _bad(message: str, param: str | None = None, hint: str | None = None) -> RequestRejected:
    return RequestRejected(RejectionKind.BAD_REQUEST, message, param=param, hint=hint)
