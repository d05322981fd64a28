"""Replies on the wire: the same keys in the same order as vLLM 0.32 writes them."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Any

import orjson

from phasewise.core.steps import FinishedRequest
from phasewise.fake_engine.wire_requests import BadRequest, GenerationCall
from phasewise.simulator import tokens
from phasewise.simulator.engine import EmittedToken

DONE = b"data: [DONE]\n\n"
INTERNAL_ERROR: tuple[str, str, None, int] = ("Internal server error", "InternalServerError", None, 500)
"""Message, type, parameter and status of vLLM's reply to a request that fails inside it."""
FINGERPRINT = "vllm-0.32.0-fake"
Answers = Sequence[Sequence[EmittedToken]]
"""The tokens of each choice of a reply, which are not streamed."""


class ReplyWriter:
    """Writes the reply to one call, or one choice of its stream."""

    end = DONE
    """What ends a stream."""

    def __init__(
        self, call: GenerationCall, model: str, block_size: int, created_unix_s: int, choice: int = 0
    ) -> None:
        self._call = call
        self._choice = choice
        self._written = 0
        self._block_size = block_size
        kind = (
            ("chat.completion.chunk" if call.stream else "chat.completion")
            if call.chat
            else "text_completion"
        )
        self._frame = {"id": call.request_id, "object": kind, "created": created_unix_s, "model": model}
        # Most chunks of a stream differ only in their text: the rest is encoded once.
        template = _event(self._content_chunk("\x00", None, None)).partition(b'"\\u0000"')
        self._before_text, _, self._after_text = template

    # --- streamed -----------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        """The chunk with the role, which only chats have."""
        if not self._call.chat:
            return b""
        choice = {
            "index": self._choice,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        chunk = {**self._frame, "choices": [choice]}
        return _event(chunk | {"prompt_token_ids": self._prompt_ids(), "prompt_text": None})

    def content(self, token: EmittedToken) -> bytes:
        """The chunk of one token."""
        text = tokens.token_bytes(token.token_id)
        call = self._call
        plain = token.finish_reason is None and not call.return_token_ids and call.top_logprobs is None
        if plain:
            return self._before_text + b'"' + text + b'"' + self._after_text
        chunk = self._content_chunk(text.decode(), token, token.finish_reason)
        if token.finish_reason is not None and not call.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return _event(chunk)

    def closing(self, finished: FinishedRequest) -> bytes:
        """The usage chunk, where it was requested; the end mark follows it."""
        if not self._call.include_usage:
            return b""
        chunk = {
            **self._frame,
            "choices": [],
            "usage": self._usage(finished),
            "system_fingerprint": FINGERPRINT,
            "metrics": {key: value for key, value in request_metrics(finished).items() if value is not None},
        }
        return _event(chunk)

    def failing(self) -> bytes:
        """What a stream ends with if its request fails inside the engine: vLLM sends the role even so."""
        message, kind, param, status = INTERNAL_ERROR
        error = {"error": {"message": message, "type": kind, "param": param, "code": status}}
        # vLLM writes spaces only here.
        return ReplyWriter.opening(self) + b"data: " + json.dumps(error).encode() + b"\n\n"

    def _content_chunk(self, text: str, token: EmittedToken | None, reason: str | None) -> dict[str, Any]:
        ids = [token.token_id] if token is not None and self._call.return_token_ids else None
        said: dict[str, Any] = {"delta": {"content": text}} if self._call.chat else {"text": text}
        likely = None if token is None else self._logprobs([token])
        choice = {"index": self._choice, **said, "logprobs": likely, "finish_reason": reason}
        if not self._call.chat:
            first = token is not None and token.index == 0
            choice |= {"stop_reason": None, "prompt_token_ids": self._prompt_ids() if first else None}
        elif reason is not None:
            choice["stop_reason"] = None
        return {**self._frame, "choices": [{**choice, "token_ids": ids}]}

    # --- plain --------------------------------------------------------------------------------------------

    def plain(
        self, answers: Answers, finished: FinishedRequest, kv_params: dict[str, Any] | None = None
    ) -> bytes:
        """The whole reply at once; `kv_params` say where the prompt's KV is kept."""
        prompt: dict[str, Any] = {"prompt_logprobs": None, "prompt_token_ids": self._prompt_ids()}
        last = ({} if self._call.chat else prompt) | {"routed_experts": None}
        choices = [self._whole_choice(index, answer) | last for index, answer in enumerate(answers)]
        usage = self._usage(finished) | {"completion_tokens_details": None}
        usage["prompt_tokens_details"].setdefault("created_cache_tokens", None)
        usage["prompt_tokens_details"]["multimodal_tokens"] = None
        reply = {
            **self._frame,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage,
            **(prompt | {"prompt_text": None} if self._call.chat else {}),
            "kv_transfer_params": kv_params,
            "ec_transfer_params": None,
            "metrics": request_metrics(finished) | {"speculative_decoding": None},
        }
        return orjson.dumps(reply)

    def _whole_choice(self, index: int, answer: Sequence[EmittedToken]) -> dict[str, Any]:
        text, self._written = text_of(answer), 0
        return {
            "index": index,
            **({"message": self._message(text)} if self._call.chat else {"text": text}),
            "logprobs": self._logprobs(answer),
            "finish_reason": answer[-1].finish_reason,
            "stop_reason": None,
            "token_ids": [token.token_id for token in answer] if self._call.return_token_ids else None,
        }

    def _message(self, text: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None, "annotations": None}
        return message | {"audio": None, "function_call": None, "reasoning": None}

    def _logprobs(self, answer: Sequence[EmittedToken]) -> dict[str, Any] | None:
        """Log-probabilities of tokens as vLLM writes them; the chosen one is always the most likely."""
        top = self._call.top_logprobs
        if top is None:
            return None
        ranked = [
            [
                (tokens.decode([token.token_id ^ rank]), -(token.token_id % 89) / 64 - rank)
                for rank in range(max(1, top))
            ]
            for token in answer
        ]
        if self._call.chat:
            content = [
                _likely(*of[0]) | {"top_logprobs": [_likely(*alternative) for alternative in of[:top]]}
                for of in ranked
            ]
            return {"content": content}
        texts = [of[0][0] for of in ranked]
        *offsets, self._written = accumulate(map(len, texts), initial=self._written)
        likely = [of[0][1] for of in ranked]
        named = {"token_logprobs": likely, "tokens": texts, "top_logprobs": [dict(of) for of in ranked]}
        return {"text_offset": offsets, **named}

    def _prompt_ids(self) -> list[int] | None:
        return list(self._call.prompt_ids) if self._call.return_token_ids else None

    def _usage(self, finished: FinishedRequest) -> dict[str, Any]:
        details = {"cached_tokens": finished.cached_tokens}
        if self._call.chat:
            full_blocks_tokens = finished.prompt_tokens // self._block_size * self._block_size
            details["created_cache_tokens"] = max(0, full_blocks_tokens - finished.cached_tokens)
        return {
            "prompt_tokens": finished.prompt_tokens,
            "total_tokens": finished.prompt_tokens + finished.output_tokens,
            "completion_tokens": finished.output_tokens,
            "prompt_tokens_details": details,
        }


def text_of(answer: Sequence[EmittedToken]) -> str:
    """The text of tokens."""
    return tokens.decode(token.token_id for token in answer)


def _likely(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def request_metrics(finished: FinishedRequest) -> dict[str, float | None]:
    """The per-request timings; vLLM's "time to first token" here is the prefill alone."""
    busy_s = finished.prefill_s + finished.decode_s
    gaps = finished.output_tokens - 1
    return {
        "time_to_first_token_ms": finished.prefill_s * 1e3,
        "generation_time_ms": finished.decode_s * 1e3,
        "queue_time_ms": finished.queue_s * 1e3,
        "mean_itl_ms": finished.decode_s * 1e3 / gaps if gaps else None,
        "tokens_per_second": finished.output_tokens / busy_s if busy_s > 0 else None,
    }


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


# --- Embeddings of a fake engine: short, and the same for the same text. They take no time.

DIMENSIONS = 8


def embeddings_reply(data: Mapping[str, Any], model: str, request_id: str | None) -> dict[str, Any]:
    """The reply to a request whose model has been checked; rejects input that is no text or token ids."""
    prompts = [_token_ids(item) for item in _items(data.get("input"))]
    as_base64 = data.get("encoding_format") == "base64"
    vectors = [_vector(ids, as_base64=as_base64) for ids in prompts]
    count = sum(map(len, prompts))
    return {
        "id": f"embd-{request_id or 'none'}",
        "object": "list",
        "model": model,
        "data": [
            {"index": index, "object": "embedding", "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0},
    }


def _items(given: object) -> list[object]:
    if isinstance(given, list) and given and not all(isinstance(item, int) for item in given):
        return given
    return [given]


def _token_ids(item: object) -> list[int]:
    if isinstance(item, str) and item:
        return list(tokens.encode(item))
    if (
        isinstance(item, list)
        and item
        and all(type(token) is int and 0 <= token < tokens.ID_LIMIT for token in item)
    ):
        return item
    raise BadRequest("input must be text or token ids, and not empty", "BadRequestError", "input", 400)


def _vector(ids: list[int], *, as_base64: bool) -> list[float] | str:
    digest = sha256(repr(ids).encode()).digest()
    values = [byte / 255 - 0.5 for byte in digest[:DIMENSIONS]]
    return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *values)).decode() if as_base64 else values
