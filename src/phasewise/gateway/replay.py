"""Writes an answer that was made before, or for somebody else, as an engine would write it for this client.

Bytes only, with the same keys in the same chunks as vLLM's. Sending them is found_answers.py's.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from phasewise.adapters.sse import DONE
from phasewise.model.request import Endpoint

STREAM_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")
PLAIN_TYPE = (b"content-type", b"application/json")
LONGEST_PIECE = 16
"""In characters: texts without spaces come in pieces too."""

Counts = tuple[int, int]
"""Tokens of the prompt and of the answer."""

_PIECE = re.compile(rf"\s*\S{{1,{LONGEST_PIECE}}}|\s+")
_LIST_OPENS, _BETWEEN, _LIST_CLOSES = b"[\n  ", b",\n  ", b"\n]"
_MARK = "\x00"
_MARKED = b'"\\u0000"'


def pieces_of(text: str) -> list[str]:
    """The text in pieces of about a token each, cut at words; together they are the text exactly."""
    return _PIECE.findall(text)


class End(NamedTuple):
    """Why an answer ended, and what of the request's own it stopped at."""

    finish_reason: str | None
    stop_reason: int | str | None = None


_GOES_ON = End(None)


class Frames:
    """What stands around the text of one answer: its chunks, or the whole reply, as one client reads them."""

    __slots__ = ("_after", "_before", "_chat", "_frame")

    def __init__(self, endpoint: Endpoint, request_id: str, model: str, created: int) -> None:
        self._chat = endpoint is Endpoint.CHAT
        self._frame = {
            "id": answer_id(endpoint, request_id),
            "object": "",
            "created": created,
            "model": model,
        }
        self._before = self._after = b""

    # --- as a stream ----------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        """The chunk with the role, which only chats have."""
        if not self._chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return _event({**self._chunk(), "choices": [choice], "prompt_token_ids": None, "prompt_text": None})

    def content(self, pieces: list[str]) -> bytes:
        """A chunk for each of these pieces of text, of which there is one at least."""
        before, after = self._around()
        # All in one call, as a call for each takes longer than all else. Within strings a line's end is
        # escaped, so that what is between two of them stands nowhere else.
        listed = orjson.dumps(pieces, option=orjson.OPT_INDENT_2)[len(_LIST_OPENS) : -len(_LIST_CLOSES)]
        return before + listed.replace(_BETWEEN, after + before) + after

    def escaped(self, text: bytes) -> bytes:
        """A chunk for a text as it stands between the quotes of its JSON."""
        before, after = self._around()
        return b'%b"%b"%b' % (before, text, after)

    def closing(self, end: End, counts: Counts | None) -> bytes:
        """The chunk that announces the end and, for a client who asked for it, the one with usage."""
        last = _event({**self._chunk(), "choices": [self._choice("", end)]})
        if counts is None:
            return last
        return last + _event({**self._chunk(), "choices": [], "usage": _usage(counts)})

    def _around(self) -> tuple[bytes, bytes]:
        """What stands before and after the text of a chunk: they differ in nothing else."""
        if not self._before:
            marked = _event({**self._chunk(), "choices": [self._choice(_MARK, _GOES_ON)]})
            self._before, _, self._after = marked.partition(_MARKED)
        return self._before, self._after

    def _chunk(self) -> dict[str, Any]:
        return {**self._frame, "object": "chat.completion.chunk" if self._chat else "text_completion"}

    def _choice(self, text: str, end: End) -> dict[str, Any]:
        if not self._chat:
            return {
                "index": 0,
                "text": text,
                "logprobs": None,
                "finish_reason": end.finish_reason,
                "stop_reason": end.stop_reason,
                "prompt_token_ids": None,
                "token_ids": None,
            }
        choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "logprobs": None}
        choice["finish_reason"] = end.finish_reason
        if end.finish_reason is not None:
            choice["stop_reason"] = end.stop_reason
        return {**choice, "token_ids": None}

    # --- as a whole -----------------------------------------------------------------------------------------

    def plain(self, text: str, end: End, counts: Counts | None) -> bytes:
        """The whole reply."""
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None}
            choice["message"] = message | {"audio": None, "function_call": None, "reasoning": None}
        else:
            choice["text"] = text
        choice |= {
            "logprobs": None,
            "finish_reason": end.finish_reason,
            "stop_reason": end.stop_reason,
            "token_ids": None,
        }
        reply = {
            **self._frame,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": None if counts is None else _usage(counts),
        }
        return orjson.dumps(reply)


def answer_id(endpoint: Endpoint, request_id: str) -> str:
    """The id that an answer carries, as engines write it."""
    return f"{'chatcmpl' if endpoint is Endpoint.CHAT else 'cmpl'}-{request_id}"


def end_mark() -> bytes:
    """The event that ends a stream."""
    return DONE + b"\n\n"


def _usage(counts: Counts) -> dict[str, int]:
    prompt_tokens, output_tokens = counts
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
