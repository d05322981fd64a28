"""Embeddings as a fake engine gives them: short, and the same for the same text. No time passes over them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from phasewise.fake_engine import tokens
from phasewise.fake_engine.wire_requests import BadRequest

DIMENSIONS = 8


def embeddings_reply(data: Mapping[str, Any], model: str, request_id: str | None) -> dict[str, Any]:
    """The reply to a request whose model has been checked; refuses an input that is no text and no tokens."""
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
    if isinstance(item, list) and item and all(type(it) is int and 0 <= it < tokens.ID_LIMIT for it in item):
        return item
    raise BadRequest("input must be text or token ids, and not empty", "BadRequestError", "input", 400)


def _vector(ids: list[int], *, as_base64: bool) -> list[float] | str:
    digest = sha256(repr(ids).encode()).digest()
    values = [byte / 255 - 0.5 for byte in digest[:DIMENSIONS]]
    return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *values)).decode() if as_base64 else values
