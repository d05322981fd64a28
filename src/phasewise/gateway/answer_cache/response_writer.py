"""Sends a client a stored or shared answer: whole, at once, or piece by piece as it arrives."""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

import orjson

from phasewise.clients.sse import DONE
from phasewise.core.request import Endpoint
from phasewise.core.timeline import EngineAccount
from phasewise.gateway.records.server_timing import SERVER_TIMING, server_timing, timing_comment
from phasewise.gateway.upstream.call import Call
from phasewise.gateway.upstream.response import Answer

# --- Writes an answer as an engine would write it for this client: the same keys in the same chunks as vLLM.

STREAM_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")
PLAIN_TYPE = (b"content-type", b"application/json")
LONGEST_PIECE = 16
"""In characters, so that texts without spaces are split too."""

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
    """Why an answer ended, and at which of the request's stop sequences."""

    finish_reason: str | None
    stop_reason: int | str | None = None


_GOES_ON = End(None)


class Frames:
    """The JSON around the text of one answer: its chunks, or the whole response."""

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
        """A chunk for each of at least one piece of text."""
        before, after = self._around()
        # One call for all pieces: a call for each would dominate the cost. Strings hold no raw newline, so
        # the separator cannot occur within them.
        listed = orjson.dumps(pieces, option=orjson.OPT_INDENT_2)[len(_LIST_OPENS) : -len(_LIST_CLOSES)]
        return before + listed.replace(_BETWEEN, after + before) + after

    def escaped(self, text: bytes) -> bytes:
        """A chunk for a text that is already escaped for JSON."""
        before, after = self._around()
        return b'%b"%b"%b' % (before, text, after)

    def closing(self, end: End, counts: Counts | None) -> bytes:
        """The last chunk and, if `counts` is given, the one with usage."""
        last = _event({**self._chunk(), "choices": [self._choice("", end)]})
        if counts is None:
            return last
        return last + _event({**self._chunk(), "choices": [], "usage": _usage(counts)})

    def _around(self) -> tuple[bytes, bytes]:
        """The bytes before and after the text of a chunk; chunks differ in nothing else."""
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
        """The whole response."""
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
    """The id of an answer, as engines write it."""
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


class ResponseWriter:
    """Writes one answer to one client and notes what was sent."""

    def __init__(self, call: Call, model: str) -> None:
        self._call = call
        self._client = call.client
        self.request = call.timeline.request
        endpoint, created = Endpoint(call.path), int(time.time())
        self._frames = Frames(endpoint, call.request_id, model, created)
        self._unsent = b""
        # What a worker needs to resume the answer.
        self._answer = Answer()
        self._answer.engine_request_id = answer_id(endpoint, call.request_id)
        self._answer.created = created
        call.timeline.note_answer(self._answer)

    @property
    def output_tokens(self) -> int | None:
        """The answer's tokens, if known."""
        return self._answer.account.output_tokens

    def put(self, pieces: list[str]) -> None:
        """Queue pieces of text; the next send includes them."""
        if pieces:
            self._unsent += self._opening() + self._frames.content(pieces)
            self._answer.content_times_s.append(time.monotonic())

    async def send_escaped(self, text: bytes) -> None:
        """Send a piece of text that is already escaped for JSON."""
        opening = self._opening()
        self._answer.text_escaped += text
        self._answer.content_times_s.append(time.monotonic())
        await self._send(opening + self._frames.escaped(text))

    async def finish(self, end: End, counts: Counts | None) -> None:
        """Send the queued pieces and the end of the stream."""
        call, client = self._call, self._client
        opening = b"" if client.started or self._unsent else self._frames.opening()
        self._note_end(end, counts)
        last = self._unsent + opening + self._frames.closing(end, None if call.hide_usage else counts)
        if call.wants_timing:
            last += timing_comment(call.timeline.so_far(time.monotonic()))
        await self._start()
        await client.finish(last + end_mark())

    async def send_whole(self, text: str, end: End, counts: Counts | None) -> None:
        """Send a response that is not streamed."""
        call = self._call
        self._note_end(end, counts)
        body = self._frames.plain(text, end, counts)
        timing = (SERVER_TIMING, server_timing(*call.timeline.parts_so_far(time.monotonic())))
        await self._client.respond(200, [PLAIN_TYPE, *call.reply_headers, timing], body)

    def _opening(self) -> bytes:
        return b"" if self._answer.content_times_s else self._frames.opening()

    async def _send(self, data: bytes) -> None:
        await self._start()
        await self._client.send_part(data)

    async def _start(self) -> None:
        if not self._client.started:
            self._client.streaming = True
            await self._client.start(200, [STREAM_TYPE, *self._call.reply_headers])

    def _note_end(self, end: End, counts: Counts | None) -> None:
        answer = self._answer
        answer.finish_reason, answer.finished_s = end.finish_reason, time.monotonic()
        if counts is not None:
            answer.account = EngineAccount(prompt_tokens=counts[0], output_tokens=counts[1])
