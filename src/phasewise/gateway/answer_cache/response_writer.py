"""Sends a client a stored or shared answer as an engine would: the same keys in the same chunks as vLLM."""

from __future__ import annotations

import re
import time
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from phasewise.clients.sse import DONE
from phasewise.core.request import Endpoint
from phasewise.core.timeline import EngineAccount
from phasewise.gateway.records.server_timing import SERVER_TIMING, server_timing, timing_comment
from phasewise.gateway.upstream.call import Call
from phasewise.gateway.upstream.response import Answer

STREAM_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")
PLAIN_TYPE = (b"content-type", b"application/json")
LONGEST_PIECE = 16
"""In characters, so that texts without spaces are split too."""

_PIECE = re.compile(rf"\s*\S{{1,{LONGEST_PIECE}}}|\s+")
_LIST_OPENS, _BETWEEN, _LIST_CLOSES = b"[\n  ", b",\n  ", b"\n]"
_MARK = "\x00"
_MARKED = b'"\\u0000"'
_END_MARK = DONE + b"\n\n"


def pieces_of(text: str) -> list[str]:
    """The text in pieces of about a token each, cut at words; together they are the text exactly."""
    return _PIECE.findall(text)


class End(NamedTuple):
    """Why an answer ended, at which of the request's stop sequences, and its tokens, if known."""

    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def usage(self) -> dict[str, int] | None:
        """The usage as engines write it; None unless both counts are known."""
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "completion_tokens": self.output_tokens,
        }


_GOES_ON = End()


class Frames:
    """The JSON around the text of one answer: its chunks, or the whole response."""

    def __init__(self, endpoint: Endpoint, request_id: str, model: str, created: int) -> None:
        self._chat = endpoint is Endpoint.CHAT
        self.answer_id = f"{'chatcmpl' if self._chat else 'cmpl'}-{request_id}"
        self._frame = {"id": self.answer_id, "object": "", "created": created, "model": model}

    # --- as a stream ----------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        """The chunk with the role, which only chats have."""
        if not self._chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk(choices=[choice], prompt_token_ids=None, prompt_text=None)

    def content(self, pieces: list[str]) -> bytes:
        """A chunk for each of at least one piece of text."""
        before, after = self._around
        # One call for all pieces: a call for each would dominate the cost. Strings hold no raw newline, so
        # the separator cannot occur within them.
        listed = orjson.dumps(pieces, option=orjson.OPT_INDENT_2)[len(_LIST_OPENS) : -len(_LIST_CLOSES)]
        return before + listed.replace(_BETWEEN, after + before) + after

    def escaped(self, text: bytes) -> bytes:
        """A chunk for a text that is already escaped for JSON."""
        before, after = self._around
        return b'%b"%b"%b' % (before, text, after)

    def closing(self, end: End, *, with_usage: bool) -> bytes:
        """The last chunk and the one with usage, if it is wanted and known."""
        last, usage = self._chunk(choices=[self._choice("", end)]), end.usage
        return last + self._chunk(choices=[], usage=usage) if with_usage and usage is not None else last

    @cached_property
    def _around(self) -> tuple[bytes, bytes]:
        """The bytes before and after the text of a chunk; chunks differ in nothing else."""
        before, _, after = self._chunk(choices=[self._choice(_MARK, _GOES_ON)]).partition(_MARKED)
        return before, after

    def _chunk(self, **fields: Any) -> bytes:  # noqa: ANN401 - any JSON
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return b"data: " + orjson.dumps({**self._frame, "object": kind, **fields}) + b"\n\n"

    def _choice(self, text: str, end: End) -> dict[str, Any]:
        ended = {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
        if not self._chat:
            choice = {"index": 0, "text": text, "logprobs": None, **ended}
            return {**choice, "prompt_token_ids": None, "token_ids": None}
        if end.finish_reason is None:
            del ended["stop_reason"]
        return {"index": 0, "delta": {"content": text}, "logprobs": None, **ended, "token_ids": None}

    # --- as a whole -----------------------------------------------------------------------------------------

    def whole(self, text: str, end: End) -> bytes:
        """The whole response."""
        said: dict[str, Any] = {"text": text}
        if self._chat:
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None}
            said = {"message": message | {"audio": None, "function_call": None, "reasoning": None}}
        choice = {
            "index": 0,
            **said,
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
            "usage": end.usage,
        }
        return orjson.dumps(reply)


class ResponseWriter:
    """Writes one answer to one client, and notes in `answer` what a worker needs to resume it."""

    def __init__(self, call: Call, model: str) -> None:
        created = int(time.time())
        self._call = call
        self._frames = Frames(call.timeline.request.endpoint, call.request_id, model, created)
        self.answer = Answer()
        self.answer.engine_request_id = self._frames.answer_id
        self.answer.created = created
        call.timeline.note_answer(self.answer)

    async def send_escaped(self, text: bytes) -> None:
        """Send a piece of a stream's text that is already escaped for JSON."""
        self.answer.text_escaped += text
        self.answer.content_times_s.append(time.monotonic())
        opening = await self._start()
        await self._call.client.send_part(opening + self._frames.escaped(text))

    async def finish(self, text: str, end: End) -> None:
        """Send the text that has not been sent, which is all of it without a stream, and the end."""
        call, answer, now_s = self._call, self.answer, time.monotonic()
        answer.finish_reason, answer.finished_s = end.finish_reason, now_s
        if end.usage is not None:
            answer.account = EngineAccount(prompt_tokens=end.prompt_tokens, output_tokens=end.output_tokens)
        if not call.timeline.request.stream:
            timing = (SERVER_TIMING, server_timing(*call.timeline.parts_so_far(now_s)))
            head = [PLAIN_TYPE, *call.reply_headers, timing]
            await call.client.respond(200, head, self._frames.whole(text, end))
            return
        last = await self._start()
        if text:
            answer.content_times_s.append(now_s)
            last += self._frames.content(pieces_of(text))
        last += self._frames.closing(end, with_usage=not call.hide_usage)
        if call.wants_timing:
            last += timing_comment(call.timeline.so_far(time.monotonic()))
        await call.client.finish(last + _END_MARK)

    async def _start(self) -> bytes:
        """Begin the stream; return its opening, which is empty if it has begun already."""
        client = self._call.client
        if client.started:
            return b""
        client.streaming = True
        await client.start(200, [STREAM_TYPE, *self._call.reply_headers])
        return self._frames.opening()
