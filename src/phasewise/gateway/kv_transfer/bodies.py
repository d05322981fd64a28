"""The two request bodies of a disaggregated request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from phasewise.core.kv_transfer import ASKS_TO_KEEP_KV
from phasewise.core.request import Endpoint
from phasewise.core.request_fields import fields_where

KV_PARAMS = "kv_transfer_params"

DEFINES_PROMPT = frozenset(fields_where(lambda row: row.prefill == "prompt"))
"""The fields that the prefill worker gets: all that determine the prompt's tokens."""
KEEPS_WHOLE = frozenset(fields_where(lambda row: row.prefill == "whole"))
"""The fields that prevent disaggregation: they ask for output about the prompt itself, or change it."""

_KV_FIELD = b'"%b":' % KV_PARAMS.encode()
# Looking up a member of an enum is slow.
_CHAT, _COMPLETIONS = Endpoint.CHAT, frozenset(on for on in Endpoint if on.is_completion)
_TEXT = "text"
_TEXT_FIELDS = frozenset({"type", _TEXT})


def splittable(endpoint: Endpoint, fields: Mapping[str, Any], choices: int) -> bool:
    """Whether a request may be disaggregated.

    Untested kinds stay whole: several choices, several prompts, prompts with images or audio.
    """
    if endpoint not in _COMPLETIONS or choices != 1:
        return False
    if not KEEPS_WHOLE.isdisjoint(fields) and any(_is_asked_for(fields.get(name)) for name in KEEPS_WHOLE):
        return False
    return endpoint is not _CHAT or _is_text(fields.get("messages"))


def prefill_body(body: bytes) -> bytes:
    """The body that asks a prefill worker to compute the prompt and keep its KV."""
    fields = {name: value for name, value in orjson.loads(body).items() if name in DEFINES_PROMPT}
    return orjson.dumps({**fields, "max_tokens": 1, "stream": False, KV_PARAMS: ASKS_TO_KEEP_KV})


def decode_body(body: bytes, params: bytes) -> bytes:
    """The body that asks a decode worker for the answer with that KV; `body` is a non-empty JSON object."""
    # Spliced in before the closing brace, so that a long prompt is not serialized again.
    return body.rstrip()[:-1] + b",%b%b}" % (_KV_FIELD, params)


def kv_params(reply: bytes) -> bytes | None:
    """Where the KV is, from a prefill worker's reply; None if it kept none."""
    try:
        fields = orjson.loads(reply)
    except orjson.JSONDecodeError:
        return None
    params = fields.get(KV_PARAMS) if isinstance(fields, dict) else None
    return orjson.dumps(params) if isinstance(params, dict) and params else None


def without_kv_params(reply: bytes) -> bytes:
    """The reply for the client, without the engines' internal KV parameters."""
    # Quotes in a string would be escaped, so this is the field; mostly it is null.
    at = reply.rfind(_KV_FIELD)
    if at < 0 or reply[at + len(_KV_FIELD) : at + len(_KV_FIELD) + 8].lstrip().startswith(b"null"):
        return reply
    try:
        fields = orjson.loads(reply)
    except orjson.JSONDecodeError:
        return reply
    if isinstance(fields, dict):
        fields.pop(KV_PARAMS, None)
    return orjson.dumps(fields)


def _is_asked_for(value: object) -> bool:
    return value is not None and value is not False


def _is_text(messages: object) -> bool:
    if isinstance(messages, list):
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list) and not all(map(_is_text_part, content)):
                return False
    return True


def _is_text_part(part: object) -> bool:
    # Fields are checked too: engines use them if there is no type.
    return isinstance(part, dict) and part.keys() <= _TEXT_FIELDS and part.get("type", _TEXT) == _TEXT
