"""Sends a client a stored or shared answer as an engine would: the same keys in the same chunks as vLLM."""

from __future__ import annotations

import time
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
LONGEST_CHUNK = 4096
"""The most characters of a stored text in one chunk: clients may limit the length of a line."""

_END_MARK = DONE + b"\n\n"


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

    def opening(self) -> bytes:
        """The chunk with the role, which only chats have."""
        if not self._chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk([choice], prompt_token_ids=None, prompt_text=None)

    def content(self, text: str | orjson.Fragment, end: End = _GOES_ON) -> bytes:
        """A chunk of text. The last one says why the answer ended."""
        if not self._chat:
            return self._chunk([_choice({"text": text}, end, prompt_token_ids=None)])
        choice = _choice({"delta": {"content": text}}, end)
        if end.finish_reason is None:
            del choice["stop_reason"]
        return self._chunk([choice])

    def usage(self, end: End) -> bytes:
        """The chunk with usage, if it is known."""
        return b"" if end.usage is None else self._chunk([], usage=end.usage)

    def whole(self, text: str, end: End) -> bytes:
        """The whole response."""
        said: dict[str, Any] = {"text": text}
        if self._chat:
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None}
            said = {"message": message | {"audio": None, "function_call": None, "reasoning": None}}
        kind = "chat.completion" if self._chat else "text_completion"
        more = {"service_tier": None, "system_fingerprint": None, "usage": end.usage}
        return orjson.dumps({**self._frame, "object": kind, "choices": [_choice(said, end)], **more})

    def _chunk(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        chunk = {**self._frame, "object": kind, "choices": choices, **more}
        return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _choice(said: dict[str, Any], end: End, **more: None) -> dict[str, Any]:
    return {
        "index": 0,
        **said,
        "logprobs": None,
        "finish_reason": end.finish_reason,
        "stop_reason": end.stop_reason,
        **more,
        "token_ids": None,
    }


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
        await self._call.client.send_part(opening + self._frames.content(orjson.Fragment(b'"%b"' % text)))

    async def finish(self, text: str, end: End) -> None:
        """Send the text that has not been sent, which is all of it without a stream, and the end."""
        call, answer = self._call, self.answer
        now_s = time.monotonic()
        answer.finish_reason = end.finish_reason
        answer.finished_s = now_s
        answer.account = EngineAccount(prompt_tokens=end.prompt_tokens, output_tokens=end.output_tokens)
        if not call.timeline.request.stream:
            timing = (SERVER_TIMING, server_timing(*call.timeline.parts_so_far(now_s)))
            head = [PLAIN_TYPE, *call.reply_headers, timing]
            await call.client.respond(200, head, self._frames.whole(text, end))
            return
        last = await self._start()
        if text:
            answer.content_times_s.append(now_s)
            chunks = range(0, len(text), LONGEST_CHUNK)
            last += b"".join(self._frames.content(text[at : at + LONGEST_CHUNK]) for at in chunks)
        last += self._frames.content("", end)
        if not call.hide_usage:
            last += self._frames.usage(end)
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
