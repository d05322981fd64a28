"""What is asked of an engine that has no KV cache: a chat that can be answered one token at a time, or not.

Answering it is left to recomputation.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.errors import RefusalKind, RequestRefused

MOST_OUTPUT_TOKENS = 64
"""The work grows with the square of what is written: longer answers would be waited for in vain."""
TAKEN = frozenset({
    *("model", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos"),
    *("temperature", "stream", "stream_options"),
})  # fmt: skip
"""Fields that can be followed one token at a time; another one would be ignored, so it is refused."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asks for, as far as it can be done without a cache."""

    model: str
    messages: object
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    include_usage: bool

    @property
    def conversation(self) -> dict[str, object]:
        """What the engine's tokenizer is asked about."""
        return {"model": self.model, "messages": self.messages}

    def step(self, ids: list[int], written: int) -> dict[str, object]:
        """What the engine is asked for the next token."""
        return {
            "model": self.model,
            "prompt": ids,
            "max_tokens": 1,
            # Each token is a first one to the engine: it may end the answer only where the whole may end.
            "min_tokens": int(written < self.min_tokens),
            "ignore_eos": self.ignore_eos,
            "temperature": 0,
            "return_token_ids": True,
        }


def read_order(body: bytes) -> Order:
    """Read a request's body; what cannot be done is refused by name."""
    fields = _fields(body)
    max_tokens = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if type(max_tokens) is not int or not 1 <= max_tokens <= MOST_OUTPUT_TOKENS:
        raise _refusal(f"answers without a KV cache have 1 to {MOST_OUTPUT_TOKENS} tokens", "max_tokens")
    if fields.get("stream") is not True:
        raise _refusal("answers without a KV cache are streamed", "stream")
    if fields.get("temperature") != 0:
        raise _refusal("answers without a KV cache are greedy: ask for temperature 0", "temperature")
    options = fields.get("stream_options")
    return Order(
        model=str(fields.get("model", "")),
        messages=fields.get("messages"),
        max_tokens=max_tokens,
        min_tokens=int(fields.get("min_tokens") or 0),
        ignore_eos=fields.get("ignore_eos") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise _refusal("the request's body is not a JSON object")
    for name in fields:
        if name not in TAKEN:
            raise _refusal("a field cannot be followed without a KV cache: leave it out", name)
    return fields


def _refusal(message: str, param: str | None = None) -> RequestRefused:
    return RequestRefused(RefusalKind.BAD_REQUEST, message, param=param)
