"""Forwards a stream of events as they came, and notes on the way when content came and how it ended.

It is handed bytes and returns bytes: reading and writing sockets is the flow driver's.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from phasewise.adapters.engine_report import read_report
from phasewise.adapters.sse import (
    BLANK_LINE,
    Chunk,
    EventSplitter,
    chunk_created,
    chunk_id,
    events_in,
    parse_chunk,
    says_more_than_text,
)
from phasewise.errors import FailureKind, UpstreamError
from phasewise.gateway.answer import Answer

HOLD_LIMIT_BYTES = 64 * 1024
"""Events before the first content are held back up to this size, then sent on all the same."""

ABORTED = "abort"
"""How an engine ends an answer that it gave up by itself, for one because it was told to shut down."""

SHAPES_TO_LEARN = 8
"""A stream whose ordinary chunks keep changing shape (logprobs, several choices) is read chunk by chunk."""

_INSIDE_STRING = rb'[^"\\\n]*(?:\\.[^"\\\n]*)*'
_CONTENT_STRING = re.compile(
    rb'"(content|reasoning|reasoning_content|text)":\s*"(?P<inside>' + _INSIDE_STRING + rb')"'
)
_TEXT_STRING = re.compile(rb'"(?:content|text)":\s*"(' + _INSIDE_STRING + rb')"')
_STRING = re.compile(_INSIDE_STRING)
_TEXT_KEYS = frozenset({b"content", b"text"})
_NO_CHOICES = re.compile(rb'"choices":\s*\[\s*\]')


class StreamRelay:
    """One answer on its way through.

    Nothing is released before the first content (or the end): until then the client has seen nothing, and the
    request can still run elsewhere. Only complete events are released, so that a client never gets half a
    chunk of a worker that died.
    """

    __slots__ = (
        "_content_times_s",
        "_done",
        "_expects_usual",
        "_held",
        "_hide_usage",
        "_lessons_left",
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

    def __init__(self, answer: Answer, *, hide_usage: bool) -> None:
        self.answer = answer
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

        An engine writes chunk after chunk that differ in one string only. Once that shape is known, two
        comparisons tell that a read is one such chunk, if what differs is one string and nothing more.
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
            chunk = parse_chunk(event)
            if broken := ABORTED if chunk.finish_reason == ABORTED else chunk.error:
                complete = complete[: self._break_off(broken, complete.find(event))]
                break
            # Of every chunk: sound and annotations come in chunks without text.
            if not self.answer.saw_other_than_text:
                self.answer.saw_other_than_text = says_more_than_text(event)
            if chunk.has_content:
                self._note_content(event, at_s)
            if chunk.finish_reason or chunk.usage or chunk.done:
                self._note_telling(chunk, at_s)
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
            # The first content is never a usual chunk: nothing was there yet to be like.
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
        """The engine says it broke. What it wrote until there is passed on, for others to go on from."""
        self.engine_error = error
        if not self.answer.content_times_s:
            raise UpstreamError(FailureKind.SERVER_ERROR, "the engine reported an error in its stream")
        return at

    def _note_telling(self, chunk: Chunk, at_s: float) -> None:
        if chunk.finish_reason:
            self.answer.finish_reason, self.answer.finished_s = chunk.finish_reason, at_s
            self.answer.stop_reason = chunk.stop_reason
        if chunk.usage is not None:
            self.answer.report = read_report(chunk.usage, chunk.metrics)
        if chunk.done:
            self._done = True

    def _hold(self, complete: bytes) -> bytes:
        self._held += complete
        answer = self.answer
        if not (answer.content_times_s or answer.finish_reason or len(self._held) > HOLD_LIMIT_BYTES):
            return b""
        self._released = True
        held, self._held = self._held, b""
        return held


def _is_usage_chunk(event: bytes, chunk: Chunk) -> bool:
    # Engines told to report usage all along put it into ordinary chunks too; those stay.
    return chunk.usage is not None and _NO_CHOICES.search(event) is not None


def _without_event(complete: bytes, event: bytes) -> bytes:
    start = complete.find(event)
    end = start + len(event)
    separator = BLANK_LINE.match(complete, end)
    return complete[:start] + complete[separator.end() if separator else end :]
