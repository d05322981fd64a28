"""What of a request the beginning of its prompt is known by, before any tokenizer has seen it.

Two requests whose prompts an engine would find to begin alike are to be known by the same bytes, however
their JSON was written. Cutting and hashing is model/prefix_hashes.py's.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import orjson

from phasewise.model.prefix_hashes import HASHED_BYTES, prefix_hashes
from phasewise.model.request import Endpoint

ROOT_FIELDS = (
    "add_special_tokens", "chat_template_kwargs", "reasoning_effort", "truncate_prompt_tokens",
    "truncation_side",
)  # fmt: skip
"""Fields that may change a prompt from its first token on. Left out is what most templates never see, such as
`tool_choice`, and what is put at the end: there, equal beginnings stay equal."""
OPENING_FIELDS = ("documents", "tools")
"""Parts of the prompt that stand before the messages, in about the order in which templates write them."""

_KEY_BYTES = 32


class PrefixHashing:
    """Hashes prompts under a key that never leaves the process, so that no client can aim at another's."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES) if key is None else key

    def hashes(self, endpoint: Endpoint, fields: dict[str, Any], salt: bytes | None) -> tuple[int, ...]:
        """The request's prefix hashes; none without a single, long prompt for which caches are read."""
        if _is_read_anew(fields):
            return ()
        if endpoint is Endpoint.CHAT:
            prompt = _chat(fields)
        elif endpoint is Endpoint.COMPLETIONS:
            prompt = _completion(fields.get("prompt"))
        else:
            return ()
        return prefix_hashes(_root(fields, salt), prompt, self._key)


def _is_read_anew(fields: dict[str, Any]) -> bool:
    """Whether the engine computes all of the prompt, whatever it holds: logprobs are in no cache.

    `echo` asks for them in most requests that have it, in chats by default.
    """
    return fields.get("prompt_logprobs") is not None or bool(fields.get("echo"))


def _root(fields: dict[str, Any], salt: bytes | None) -> bytes:
    """What keeps equal words apart: an adapter is asked for by its name, so the model's names both."""
    chosen = {name: value for name in ROOT_FIELDS if (value := fields.get(name)) is not None}
    return _canonical([fields.get("model"), None if salt is None else salt.decode(), chosen])


def _chat(fields: dict[str, Any]) -> bytes:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return b""
    pieces: list[bytes] = []
    room = HASHED_BYTES
    for piece in _chat_pieces(fields, messages):
        pieces.append(piece)
        room -= len(piece)
        if room <= 0:
            break
    return b"".join(pieces)


def _chat_pieces(fields: dict[str, Any], messages: list[Any]) -> Iterator[bytes]:
    for name in OPENING_FIELDS:
        if parts := _listed(fields.get(name)):
            yield _canonical(name)
            yield from map(_canonical, parts)
    for message in messages:
        yield _canonical(_plain(message) if isinstance(message, dict) else message)


def _plain(message: dict[str, Any]) -> list[Any]:
    """A message without what says nothing: fields that are null, and a list around its only text.

    Whose it is stands first, as in every template: messages that differ there have nothing in common.
    """
    head = {name: value for name, value in message.items() if value is not None and name != "content"}
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1:
        part = content[0]
        if isinstance(part, dict) and part.get("type") == "text":
            content = part.get("text")
    return [head, content[:HASHED_BYTES] if isinstance(content, str) else content]


def _completion(prompt: object) -> bytes:
    if isinstance(prompt, str):
        return prompt[:HASHED_BYTES].encode()
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        # Token ids, each of which takes a digit and a comma at least.
        return _canonical(prompt[: HASHED_BYTES // 2])
    return b""


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _canonical(value: object) -> bytes:
    """The same bytes for the same JSON, whatever the order of its keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
