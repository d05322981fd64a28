"""One worker's answer: notes on it, and the relay of a stream as bytes in and bytes out."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import sub
from typing import Any

import orjson

from phasewise.clients.sse import (
    ABORTED,
    BLANK_LINE,
    Chunk,
    EventSplitter,
    chunk_created,
    chunk_id,
    end_reasons,
    events_in,
    finish_reason_of,
    parse_chunk,
    parse_typed_event,
    reply_id,
    says_more_than_text,
)
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.timeline import NO_ACCOUNT, EngineAccount
from phasewise.engines.known import read_account

_MORE_THAN_TEXT = (
    "reasoning",
    "reasoning_content",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
    "annotations",
)
LATEST_GAPS = 16
"""The last gaps from which a stream's pace is computed: earlier ones had other streams beside them."""


class Answer:
    """Notes on one attempt's answer. Times are those of the monotonic clock.

    `text_escaped` is the text so far, escaped for JSON: what another worker could resume. It is not the whole
    answer if `saw_other_than_text`: reasoning, tool calls, logprobs, audio, annotations or a second
    choice came too. `complete`: all of it has come and its end was announced. `created` is the engine's, in
    whole seconds.
    """

    __slots__ = (
        "account",
        "complete",
        "content_times_s",
        "created",
        "engine_request_id",
        "finish_reason",
        "finished_s",
        "saw_other_than_text",
        "stop_reason",
        "text_escaped",
    )

    def __init__(self) -> None:
        # Thousands of streams are open at once: 8 bytes for a time, not the 32 of a list of floats.
        self.content_times_s = array("d")
        self.text_escaped = bytearray()
        self.saw_other_than_text = False
        self.complete = False
        self.engine_request_id: str | None = None
        self.created: int | None = None
        self.finish_reason: str | None = None
        self.finished_s: float | None = None
        self.stop_reason: int | str | None = None
        self.account = NO_ACCOUNT

    def text(self) -> str | None:
        """The text so far; None if the answer holds anything else, or the text is invalid."""
        if self.saw_other_than_text:
            return None
        try:
            text: str = orjson.loads(b'"%b"' % bytes(self.text_escaped))
        except orjson.JSONDecodeError:
            return None
        return text


def read_plain_answer(body: bytes, *, with_text: bool = False) -> Answer:
    """Notes on a reply that was not streamed, `with_text` if it may be stored.

    It has no content times: the time of its first token is unknown.
    """
    answer = Answer()
    # Until it is known to be text: an unreadable answer must not be shared.
    answer.saw_other_than_text = with_text
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return answer
    if isinstance(fields, dict):
        answer.engine_request_id = reply_id(fields)
        answer.finish_reason, answer.stop_reason = end_reasons(fields)
        if "choices" not in fields:
            answer.finish_reason = finish_reason_of(fields)
        answer.account = read_account(fields) or NO_ACCOUNT
        if with_text:
            _note_text(answer, fields.get("choices"))
    return answer


def _note_text(answer: Answer, choices: object) -> None:
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, dict):
        return
    message = choice.get("message")
    said: Mapping[str, Any] = message if isinstance(message, dict) else choice
    text = said.get("content" if isinstance(message, dict) else "text")
    if isinstance(text, str):
        answer.text_escaped += orjson.dumps(text)[1:-1]
    more = (choice.get("logprobs"), choice.get("token_ids"), *(said.get(name) for name in _MORE_THAN_TEXT))
    answer.saw_other_than_text = not isinstance(text, str) or any(more)


def account_of(answer: Answer | None) -> EngineAccount:
    """What the engine reports of the answer, with the gap that its stream shows."""
    if answer is None:
        return NO_ACCOUNT
    account = answer.account
    gap_s = _gap_s(answer.content_times_s, account.output_tokens)
    return account if gap_s is None else replace(account, gap_s=gap_s)


def _gap_s(times_s: array[float], tokens: int | None) -> float | None:
    """The median time between two tokens, from chunks, which may hold several tokens."""
    if len(times_s) < 2:
        return None
    latest_s = times_s[-LATEST_GAPS - 1 :]
    # Every answer passes here: statistics.median takes five times as long.
    gaps_s = sorted(map(sub, latest_s[1:], latest_s))
    chunk_s: float = gaps_s[(len(gaps_s) - 1) // 2]
    return chunk_s if tokens is None else chunk_s * min(1.0, len(times_s) / max(1, tokens))


# --- Forwards a stream of events as they came, and notes on the way when content came and how it ended.

HOLD_LIMIT_BYTES = 64 * 1024
"""Events before the first content are held back up to this size, then sent."""
TYPED_HOLD_LIMIT_BYTES = 1024 * 1024
"""The same at /v1/responses, where two events before the first content repeat all tools and instructions."""

SHAPES_TO_LEARN = 8
"""How many shapes are learned. A stream that keeps changing shape (logprobs, several choices) is parsed."""

_INSIDE_STRING = rb'[^"\\\n]*(?:\\.[^"\\\n]*)*'
_CONTENT_STRING = re.compile(
    rb'"(content|reasoning|reasoning_content|text)":\s*"(?P<inside>' + _INSIDE_STRING + rb')"'
)
_TEXT_STRING = re.compile(rb'"(?:content|text)":\s*"(' + _INSIDE_STRING + rb')"')
_STRING = re.compile(_INSIDE_STRING)
_TEXT_KEYS = frozenset({b"content", b"text"})
_NO_CHOICES = re.compile(rb'"choices":\s*\[\s*\]')


class StreamRelay:
    """Relays one streamed answer.

    Nothing is released before the first content or the end: until then the client has seen nothing, and the
    request can still run elsewhere. Only complete events are released, so that a client never gets half a
    chunk of a worker that died.
    """

    __slots__ = (
        "_content_times_s",
        "_done",
        "_expects_usual",
        "_held",
        "_hide_usage",
        "_hold_limit_bytes",
        "_lessons_left",
        "_parse",
        "_prefix",
        "_released",
        "_splitter",
        "_suffix",
        "_text_escaped",
        "_usual_is_text",
        "answer",
        "engine_error",
        "on_content",
    )

    def __init__(self, answer: Answer, *, hide_usage: bool, typed: bool = False) -> None:
        self.answer = answer
        # As /v1/responses and /v1/messages write events; their answers are not resumed.
        self._parse = parse_typed_event if typed else parse_chunk
        answer.saw_other_than_text |= typed
        self._hold_limit_bytes = TYPED_HOLD_LIMIT_BYTES if typed else HOLD_LIMIT_BYTES
        self.on_content: Callable[[], None] | None = None
        """Called once, when the first content of this worker has come."""
        self.engine_error: str | None = None
        self._hide_usage = hide_usage
        self._splitter = EventSplitter()
        self._held = b""
        self._released = False
        self._done = False
        self._content_times_s = answer.content_times_s
        self._text_escaped = answer.text_escaped
        self._expects_usual = self._usual_is_text = False
        self._prefix = self._suffix = b""
        self._lessons_left = SHAPES_TO_LEARN

    def feed(self, data: bytes, at_s: float) -> bytes:
        """What may be sent to the client now that `data` has come."""
        return data if self.takes_usual(data, 0, len(data), at_s) else self._read(data, at_s)

    def takes_usual(self, data: bytes, start: int, end: int, at_s: float) -> bool:
        """Whether these bytes, from `start` to `end`, are one more chunk like those before; it is then noted.

        An engine writes chunks that differ in one string only. Once that shape is known, two comparisons show
        that a read is one such chunk, if the rest is exactly one string.
        """
        if not self._expects_usual or not data.startswith(self._prefix, start, end):
            return False
        end -= len(self._suffix)
        text = data[start + len(self._prefix) : end]
        if not text or not data.startswith(self._suffix, end):
            return False
        if (b'"' in text or b"\\" in text or b"\n" in text) and not _STRING.fullmatch(text):
            return False
        self._content_times_s.append(at_s)
        if self._usual_is_text:
            self._text_escaped += text
        return True

    def _read(self, data: bytes, at_s: float) -> bytes:
        if self.engine_error is not None:
            return b""
        complete = self._splitter.complete(data)
        for event in events_in(complete):
            chunk = self._parse(event)
            if broken := ABORTED if chunk.finish_reason == ABORTED else chunk.error:
                complete = complete[: self._break_off(broken, complete.find(event))]
                break
            # Checked in every chunk: audio and annotations come in chunks without text.
            if not self.answer.saw_other_than_text:
                self.answer.saw_other_than_text = says_more_than_text(event)
            if chunk.has_content:
                self._note_content(event, at_s)
            if chunk.finish_reason or chunk.account or chunk.done or chunk.engine_id:
                self._note_end(chunk, at_s)
                if self._hide_usage and _is_usage_chunk(event, chunk):
                    complete = _without_event(complete, event)
            elif chunk.has_content and self._lessons_left:
                self._learn_shape(event)
        self._expects_usual = bool(self._prefix) and not self._splitter.pending and not self.engine_error
        return complete if self._released else self._hold(complete)

    @property
    def complete(self) -> bool:
        """Whether the answer's end was announced and all of it may be sent."""
        return self._done and not self._splitter.pending and self.engine_error is None

    def close(self) -> bytes:
        """What is left to send at the end of the reply; raises if it did not end as a stream should."""
        if self.engine_error is not None:
            raise UpstreamError(FailureKind.SERVER_ERROR, "the engine reported an error in its stream")
        if not self._done or self._splitter.pending:
            raise UpstreamError(FailureKind.CLOSED, "the stream ended before its end was announced")
        held, self._held = self._held, b""
        return held

    def _note_content(self, event: bytes, at_s: float) -> None:
        answer = self.answer
        answer.content_times_s.append(at_s)
        if self.on_content is not None:
            # The first content is never a usual chunk: no shape is known yet.
            on_content, self.on_content = self.on_content, None
            on_content()
        if answer.engine_request_id is None:
            answer.engine_request_id, answer.created = chunk_id(event), chunk_created(event)
        if text := _TEXT_STRING.search(event):
            answer.text_escaped += text[1]

    def _learn_shape(self, event: bytes) -> None:
        self._lessons_left -= 1
        if opens := _CONTENT_STRING.search(event):
            self._prefix = event[: opens.start("inside")]
            self._suffix = event[opens.end("inside") :] + b"\n\n"
            self._usual_is_text = opens[1] in _TEXT_KEYS

    def _break_off(self, error: str, at: int) -> int:
        """The engine reported an error.

        What it wrote before is sent, so that another worker can resume it.
        """
        self.engine_error = error
        if not self.answer.content_times_s:
            raise UpstreamError(FailureKind.SERVER_ERROR, "the engine reported an error in its stream")
        return at

    def _note_end(self, chunk: Chunk, at_s: float) -> None:
        if chunk.finish_reason:
            self.answer.finish_reason, self.answer.finished_s = chunk.finish_reason, at_s
            self.answer.stop_reason = chunk.stop_reason
        if chunk.account is not None:
            self.answer.account = chunk.account
        if chunk.done:
            self._done = True
        if chunk.engine_id:
            self.answer.engine_request_id = chunk.engine_id

    def _hold(self, complete: bytes) -> bytes:
        self._held += complete
        answer = self.answer
        if not (answer.content_times_s or answer.finish_reason or len(self._held) > self._hold_limit_bytes):
            return b""
        self._released = True
        held, self._held = self._held, b""
        return held


class PlainRelay(StreamRelay):
    """Relays a stream whose events the gateway does not know, as it comes. It is complete when it ends."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Answer(), hide_usage=False, typed=True)

    def feed(self, data: bytes, at_s: float) -> bytes:
        """All that has come."""
        del at_s
        if self.on_content is not None:
            self.on_content()
            self.on_content = None
        return data

    def takes_usual(self, data: bytes, start: int, end: int, at_s: float) -> bool:
        """Once it has begun, everything passes."""
        del data, start, end, at_s
        return True

    def close(self) -> bytes:
        """Nothing is held back."""
        return b""


def _is_usage_chunk(event: bytes, chunk: Chunk) -> bool:
    # With continuous usage, engines put it into ordinary chunks too; those stay.
    return chunk.account is not None and _NO_CHOICES.search(event) is not None


def _without_event(complete: bytes, event: bytes) -> bytes:
    start = complete.find(event)
    end = start + len(event)
    separator = BLANK_LINE.match(complete, end)
    return complete[:start] + complete[separator.end() if separator else end :]
