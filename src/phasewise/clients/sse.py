"""Splits arriving bytes into server-sent events, and reads the chunks of a stream with little work.

It never changes bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.timeline import EngineAccount
from phasewise.engines.known import read_account

EVENT_LIMIT_BYTES = 16 * 1024 * 1024
"""No engine writes a larger event; holding more would only fill memory."""

MALFORMED = "malformed"
"""The `error` of a chunk that is not valid JSON."""

DONE = b"data: [DONE]"
"""The event that ends a stream."""

BLANK_LINE = re.compile(rb"\r?\n\r?\n")
# An unescaped quote ends a JSON string, so `"content":"` can only be a key and its value, never quoted text.
_CONTENT = re.compile(
    rb'"(?:content|reasoning|reasoning_content|text|refusal)":\s*"[^"]'
    rb'|"tool_calls":\s*\[\s*\{|"function_call":\s*\{'
)
_MORE_THAN_CONTENT = re.compile(rb'"(?:finish_reason":\s*"|usage":\s*\{|metrics":\s*\{|error":\s*[{"])')
_ID = re.compile(rb'"id":\s*"([^"\\]*)"')
_CREATED = re.compile(rb'"created":\s*([0-9]{1,18})\b')
_MORE_THAN_TEXT = re.compile(
    rb'"(?:reasoning|reasoning_content|refusal)":\s*"[^"]'
    rb'|"(?:tool_calls|function_call|logprobs|audio|annotations|token_ids)":\s*[\[{]\s*[^\]}\s]'
    rb'|"index":\s*[1-9]'
)


class EventSplitter:
    """Splits a stream of bytes at blank lines; holds only the tail of an incomplete event."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = bytearray()

    @property
    def pending(self) -> bool:
        """Whether an incomplete event has arrived; at the end of a stream, this means that it was cut."""
        return bool(self._tail)

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete, each unchanged but without the blank line at its end."""
        return events_in(self.complete(data))

    def complete(self, data: bytes) -> bytes:
        """Everything up to the last blank line that was not returned yet; the rest is held."""
        tail = self._tail
        if not tail and data.endswith(b"\n\n"):
            return data  # the usual case: the same object is passed on, without a copy
        # A blank line may be split between two reads: search again from the bytes where it could begin.
        start = max(0, len(tail) - 2)
        tail += data
        end = max(_end_of_last(b"\n\n", tail, start), _end_of_last(b"\n\r\n", tail, start))
        if len(tail) - end > EVENT_LIMIT_BYTES:
            raise UpstreamError(FailureKind.PROTOCOL, f"an event is larger than {EVENT_LIMIT_BYTES} bytes")
        whole = bytes(tail[:end])
        del tail[:end]
        return whole


def events_in(whole: bytes) -> list[bytes]:
    """The events of bytes that end with a blank line, each without its own."""
    events = BLANK_LINE.split(whole) if b"\r" in whole else whole.split(b"\n\n")
    return [event for event in events if event]


def _end_of_last(blank_line: bytes, data: bytearray, start: int) -> int:
    at = data.rfind(blank_line, start)
    return at + len(blank_line) if at >= 0 else 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event says.

    `has_content` is true for text, reasoning and tool deltas, and false for the chunk that only opens the
    assistant's role. `stop_reason` is the stop text or stop token id of the request that the engine reached.
    `error` is the engine's own name for a failure after the stream had begun. `engine_id` is the engine's id
    of the request, where it comes before the content and not in every chunk.
    """

    has_content: bool = False
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    account: EngineAccount | None = None
    error: str | None = None
    done: bool = False
    engine_id: str | None = None


_NOTHING = Chunk()
_CONTENT_ONLY = Chunk(has_content=True)
_DONE = Chunk(done=True)


def parse_chunk(event: bytes) -> Chunk:
    """Read one event; only events with more than content are parsed as JSON."""
    has_content = _CONTENT.search(event) is not None
    if _MORE_THAN_CONTENT.search(event) is None:
        if has_content:
            return _CONTENT_ONLY
        return _DONE if b"[DONE]" in event and event_data(event) == b"[DONE]" else _NOTHING
    try:
        body = orjson.loads(event_data(event))
    except orjson.JSONDecodeError:
        return Chunk(has_content=has_content, error=MALFORMED)
    if not isinstance(body, dict):
        return Chunk(has_content=has_content, error=MALFORMED)
    finish, stop = end_reasons(body)
    return Chunk(
        has_content=has_content,
        finish_reason=finish,
        stop_reason=stop,
        account=read_account(body),
        error=_error(body),
    )


def chunk_id(event: bytes) -> str | None:
    """The engine's id of the request; not part of `parse_chunk`, as one look per stream is enough."""
    match = _ID.search(event)
    return match[1].decode(errors="replace") if match else None


def chunk_created(event: bytes) -> int | None:
    """When the engine began the answer, in whole seconds of the Unix clock."""
    match = _CREATED.search(event)
    return int(match[1]) if match else None


def says_more_than_text(event: bytes) -> bool:
    """Whether a chunk holds more than the answer's text: reasoning, tools, logprobs, audio, choices."""
    return _MORE_THAN_TEXT.search(event) is not None


def content_text(event: bytes) -> str:
    """The text a chunk adds to the answer; empty for reasoning, tool calls and unreadable chunks."""
    try:
        body = orjson.loads(event_data(event))
        text = body["choices"][0]["delta"]["content"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return ""
    return text if isinstance(text, str) else ""


def event_data(event: bytes) -> bytes:
    """The payload of an event: its `data` lines joined, without comments and other fields."""
    if b"\n" not in event:
        return event[5:].strip() if event.startswith(b"data:") else b""
    lines = (line.strip(b"\r") for line in event.split(b"\n"))
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))


def end_reasons(body: Mapping[str, Any]) -> tuple[str | None, int | str | None]:
    """Why an answer or a chunk ended: the first `finish_reason` among its choices, and the request's stop
    text or token id that the same choice reached, if any.
    """
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(finish := choice.get("finish_reason"), str):
            stop = choice.get("stop_reason")
            return finish, stop if isinstance(stop, int | str) and not isinstance(stop, bool) else None
    return None, None


def _error(body: dict[str, Any]) -> str | None:
    # The message may quote the prompt, so only the kind is kept.
    match body.get("error"):
        case {"type": str(kind)} if kind:
            return kind
        case {"code": int(code)}:
            return str(code)
        case None:
            return None
    return "error"


# --- The events of /v1/responses and /v1/messages, which name their type, as OpenAI's chunks.

ABORTED = "abort"
"""The finish reason of an answer that the engine gave up, for example at its shutdown."""

_EVENT_NAME = re.compile(rb"(?:\A|\n)event: ?([\w.]+)")
_EMPTY_DELTA = re.compile(rb'"(?:delta|text|thinking|partial_json)": ?""')
_OPENS = frozenset({b"message_start", b"response.created"})
_FAILS = frozenset({b"error", b"response.failed"})
_ENDS = _FAILS | {b"message_delta", b"response.completed", b"response.incomplete"}
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
    named = _EVENT_NAME.search(event)
    name = named[1] if named else b""
    if name in _OPENS or name in _ENDS:
        return _typed_chunk(name, event)
    if name.endswith(b"delta"):
        return _NOTHING if _EMPTY_DELTA.search(event) or b'"signature_delta"' in event else _CONTENT_ONLY
    return _DONE if name == b"message_stop" else _NOTHING


def _typed_chunk(name: bytes, event: bytes) -> Chunk:
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
        account=read_account(reply),
        done=name != b"message_delta",
    )


def finish_reason_of(reply: Mapping[str, Any]) -> str | None:
    """Why the answer ended, in the words of OpenAI's chat completions."""
    return _FINISH_REASONS.get(str(reply.get("stop_reason") or reply.get("status")))


def reply_id(reply: Mapping[str, Any]) -> str | None:
    """The engine's id of the request."""
    found = reply.get("id")
    return found if isinstance(found, str) else None


def _mapping(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
