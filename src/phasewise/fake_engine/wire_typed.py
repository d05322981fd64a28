"""Replies of /v1/responses and /v1/messages, and calls of tools, as far as clients read them."""

from __future__ import annotations

from typing import Any

import orjson

from phasewise.core.steps import FinishedRequest
from phasewise.fake_engine.wire_replies import Answers, ReplyWriter, request_metrics, text_of
from phasewise.fake_engine.wire_requests import MESSAGES, RESPONSES, GenerationCall
from phasewise.simulator import tokens
from phasewise.simulator.engine import EmittedToken

_CALLED_WITH = b'{\\"text\\":\\"', b'\\"}'
"""What surrounds the answer's tokens as the arguments of a call, in a JSON string."""


def writer_of(
    path: str, call: GenerationCall, model: str, block_size: int, created_unix_s: int, choice: int = 0
) -> Writer:
    """The writer of one choice of a reply at this address."""
    if path == RESPONSES:
        return ResponsesWriter(call, model, created_unix_s)
    if path == MESSAGES:
        return MessagesWriter(call, model)
    chosen = ToolCallWriter if call.tool is not None and call.chat else ReplyWriter
    return chosen(call, model, block_size, created_unix_s, choice)


class ToolCallWriter(ReplyWriter):
    """Writes a chat whose answer is a call."""

    def opening(self) -> bytes:
        """The role, and the call's name."""
        return super().opening() + self._delta(self._called(""), _CALLED_WITH[0])

    def content(self, token: EmittedToken) -> bytes:
        """A piece of the arguments."""
        more = {"index": 0, "function": {"arguments": "\x00"}}
        piece = self._delta(more, tokens.token_bytes(token.token_id))
        if token.finish_reason is None:
            return piece
        last = {"index": self._choice, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
        end = self._delta(more, _CALLED_WITH[1])
        return piece + end + _event(None, {**self._frame, "choices": [last]})

    def _called(self, arguments: str) -> dict[str, Any]:
        function = {"name": self._call.tool, "arguments": arguments or "\x00"}
        return {"id": "chatcmpl-tool-1", "type": "function", "index": 0, "function": function}

    def _delta(self, call: dict[str, Any], arguments: bytes) -> bytes:
        delta = {"tool_calls": [call]}
        choice = {"index": self._choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return _event(None, {**self._frame, "choices": [choice]}, arguments)

    def _message(self, text: str) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "tool_calls": [self._called(_arguments(text))]}


class ResponsesWriter:
    """Writes the reply of /v1/responses."""

    end = b""

    def __init__(self, call: GenerationCall, model: str, created_unix_s: int) -> None:
        self._tool = call.tool
        self._number = -1
        self._written: list[int] = []
        self._frame = {
            "id": call.request_id,
            "created_at": created_unix_s,
            "model": model,
            "object": "response",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "background": False,
            "service_tier": "auto",
            "truncation": "disabled",
        }

    def opening(self) -> bytes:
        """The response without output, and its first item."""
        begun = {"response": {**self._frame, "output": [], "status": "in_progress", "usage": None}}
        item = self._item("", "in_progress") | ({} if self._tool else {"content": []})
        parts = [
            self._numbered("response.created", begun),
            self._numbered("response.in_progress", begun),
            self._numbered("response.output_item.added", {"output_index": 0, "item": item}),
        ]
        if self._tool is None:
            added = {"output_index": 0, "content_index": 0, "item_id": "msg_1", "part": _part("")}
            parts.append(self._numbered("response.content_part.added", added))
        return b"".join(parts) + (self._delta(_CALLED_WITH[0]) if self._tool else b"")

    def content(self, token: EmittedToken) -> bytes:
        """A piece of the text or of the arguments."""
        self._written.append(token.token_id)
        return self._delta(tokens.token_bytes(token.token_id))

    def closing(self, finished: FinishedRequest) -> bytes:
        """The whole item, then the whole response."""
        last = self._delta(_CALLED_WITH[1]) if self._tool else b""
        reply = self._reply(tokens.decode(self._written), finished)
        item = {"output_index": 0, "item": reply["output"][0]}
        done = self._numbered("response.output_item.done", item)
        return last + done + self._numbered("response.completed", {"response": reply})

    def failing(self) -> bytes:
        """A stream that ends without its end."""
        return b""

    def plain(
        self, answers: Answers, finished: FinishedRequest, kv_params: dict[str, Any] | None = None
    ) -> bytes:
        """The whole reply at once."""
        return orjson.dumps(self._reply(text_of(answers[0]), finished))

    def _reply(self, text: str, finished: FinishedRequest) -> dict[str, Any]:
        is_cut = finished.reason == "length"
        return {
            **self._frame,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._item(text, "completed")],
            "status": "incomplete" if is_cut else "completed",
            "usage": {
                "input_tokens": finished.prompt_tokens,
                "input_tokens_details": {"cached_tokens": finished.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": finished.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": finished.prompt_tokens + finished.output_tokens,
            },
            "metrics": request_metrics(finished),
        }

    def _item(self, text: str, status: str) -> dict[str, Any]:
        if self._tool is None:
            content = [_part(text)]
            message = {"id": "msg_1", "type": "message", "role": "assistant", "status": status}
            return {**message, "content": content}
        call = {"id": "fc_1", "call_id": "call_1", "type": "function_call", "name": self._tool}
        return call | {"status": status, "arguments": _arguments(text) if text else ""}

    def _delta(self, text: bytes) -> bytes:
        name = "response.function_call_arguments.delta" if self._tool else "response.output_text.delta"
        piece = {"item_id": "fc_1" if self._tool else "msg_1", "output_index": 0, "delta": "\x00"}
        more = {} if self._tool else {"content_index": 0, "logprobs": []}
        return self._numbered(name, {**piece, **more}, text)

    def _numbered(self, name: str, data: dict[str, Any], text: bytes = b"") -> bytes:
        self._number += 1
        return _event(name, {**data, "sequence_number": self._number, "type": name}, text)


class MessagesWriter:
    """Writes the reply of /v1/messages."""

    end = b""

    def __init__(self, call: GenerationCall, model: str) -> None:
        self._tool = call.tool
        self._frame = {"id": call.request_id, "type": "message", "role": "assistant", "model": model}
        self._prompt_tokens = len(call.prompt_ids)

    def opening(self) -> bytes:
        """The message without content, and its first block."""
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        message = self._frame | empty
        start = _event("message_start", {"type": "message_start", "message": message})
        block = {"type": "content_block_start", "index": 0, "content_block": self._block("")}
        first = self._delta(_CALLED_WITH[0]) if self._tool else b""
        return start + _event("content_block_start", block) + first

    def content(self, token: EmittedToken) -> bytes:
        """A piece of the text or of the arguments."""
        return self._delta(tokens.token_bytes(token.token_id))

    def closing(self, finished: FinishedRequest) -> bytes:
        """The ends of the block and of the message."""
        ended = {"stop_reason": self._stop_reason(finished), "stop_sequence": None}
        last = self._delta(_CALLED_WITH[1]) if self._tool else b""
        stop = _event("content_block_stop", {"type": "content_block_stop", "index": 0})
        delta = {"type": "message_delta", "delta": ended, "usage": _usage(finished)}
        end = _event("message_delta", delta) + _event("message_stop", {"type": "message_stop"})
        return last + stop + end

    def failing(self) -> bytes:
        """The event of an error."""
        error = {"type": "internal_error", "message": "Internal server error"}
        return _event("error", {"type": "error", "error": error})

    def plain(
        self, answers: Answers, finished: FinishedRequest, kv_params: dict[str, Any] | None = None
    ) -> bytes:
        """The whole reply at once."""
        ended = {"stop_reason": self._stop_reason(finished), "usage": _usage(finished)}
        return orjson.dumps({**self._frame, "content": [self._block(text_of(answers[0]))], **ended})

    def _block(self, text: str) -> dict[str, Any]:
        if self._tool is None:
            return {"type": "text", "text": text}
        call = {"type": "tool_use", "id": "toolu_1", "name": self._tool}
        return {**call, "input": {"text": text} if text else {}}

    def _delta(self, text: bytes) -> bytes:
        kind, key = ("input_json_delta", "partial_json") if self._tool else ("text_delta", "text")
        delta = {"type": "content_block_delta", "delta": {"type": kind, key: "\x00"}, "index": 0}
        return _event("content_block_delta", delta, text)

    def _stop_reason(self, finished: FinishedRequest) -> str:
        if self._tool is not None:
            return "tool_use"
        return "max_tokens" if finished.reason == "length" else "end_turn"


Writer = ReplyWriter | ResponsesWriter | MessagesWriter
"""Writes the reply to one call: its stream with `opening`, `content`, `closing` and `end`, or `plain`."""


def _usage(finished: FinishedRequest) -> dict[str, int]:
    return {
        "input_tokens": finished.prompt_tokens - finished.cached_tokens,
        "output_tokens": finished.output_tokens,
        "cache_read_input_tokens": finished.cached_tokens,
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _arguments(text: str) -> str:
    return orjson.dumps({"text": text}).decode()


def _event(name: str | None, data: dict[str, Any], text: bytes = b"") -> bytes:
    """An event. `text`, which is escaped for JSON, replaces its NUL."""
    named = b"" if name is None else b"event: %b\n" % name.encode()
    return named + b"data: " + orjson.dumps(data).replace(b"\\u0000", text) + b"\n\n"
