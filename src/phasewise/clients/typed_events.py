"""Reads the replies of /v1/responses and /v1/messages, whose events name their type, as OpenAI's chunks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from phasewise.clients.sse import MALFORMED, Chunk, event_data
from phasewise.engines.known import timings_in

ABORTED = "abort"
"""The finish reason of an answer that the engine gave up, for example at its shutdown."""

_NAME = re.compile(rb"(?:\A|\n)event: ?([\w.]+)")
_EMPTY_DELTA = re.compile(rb'"(?:delta|text|thinking|partial_json)": ?""')
_OPENS = frozenset({b"message_start", b"response.created"})
_FAILS = frozenset({b"error", b"response.failed"})
_ENDS = _FAILS | {b"message_delta", b"response.completed", b"response.incomplete"}
_NOTHING = Chunk()
_CONTENT = Chunk(has_content=True)
_DONE = Chunk(done=True)
_FINISH_REASONS = {
    # Of /v1/messages.
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    # Of /v1/responses.
    "completed": "stop",
    "incomplete": "length",
    "cancelled": ABORTED,
}


def parse_typed_event(event: bytes) -> Chunk:
    """Read one event; only the first and the last ones are parsed as JSON."""
    named = _NAME.search(event)
    name = named[1] if named else b""
    if name in _OPENS or name in _ENDS:
        return _parsed(name, event)
    if name.endswith(b"delta"):
        return _NOTHING if _EMPTY_DELTA.search(event) or b'"signature_delta"' in event else _CONTENT
    return _DONE if name == b"message_stop" else _NOTHING


def _parsed(name: bytes, event: bytes) -> Chunk:
    try:
        body = orjson.loads(event_data(event))
    except orjson.JSONDecodeError:
        return Chunk(error=MALFORMED)
    if not isinstance(body, dict) or name in _FAILS:
        return Chunk(error=MALFORMED if name not in _FAILS else "error")
    # The events of /v1/messages each have a part of the reply, those of /v1/responses all of it.
    reply = _mapping(body.get("response")) or _mapping(body.get("message")) or body
    if name in _OPENS:
        return Chunk(engine_id=reply_id(reply))
    return Chunk(
        finish_reason=finish_reason_of(_mapping(body.get("delta")) or reply) or ABORTED,
        usage=usage_of(reply),
        metrics=timings_in(reply),
        done=name != b"message_delta",
    )


def finish_reason_of(reply: Mapping[str, Any]) -> str | None:
    """Why the answer ended, in the words of OpenAI's chat completions."""
    return _FINISH_REASONS.get(str(reply.get("stop_reason") or reply.get("status")))


def usage_of(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reply's counts of tokens under the names of OpenAI's chat completions.

    The input tokens of /v1/messages leave out those that were read from the engine's cache or written to it.
    """
    usage = _mapping(reply.get("usage"))
    if usage is None or "input_tokens" not in usage:
        return usage
    cached = usage.get("cache_read_input_tokens")
    counts = (usage["input_tokens"], cached, usage.get("cache_creation_input_tokens"))
    details = _mapping(usage.get("input_tokens_details")) or {"cached_tokens": cached}
    return {
        "prompt_tokens": sum(it for it in counts if type(it) is int),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": details,
    }


def reply_id(reply: Mapping[str, Any]) -> str | None:
    """The engine's id of the request."""
    found = reply.get("id")
    return found if isinstance(found, str) else None


def _mapping(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
