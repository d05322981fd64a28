"""Hashes and marks of prompt prefixes, without a tokenizer.

Two requests whose prompts have a common prefix for the engine have the same bytes here, however their JSON is
written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import orjson

from phasewise.core.prefixes import (
    HASHED_BYTES,
    MARK_SIZES_BYTES,
    TEXT_LIMIT_BYTES,
    prefix_hashes,
    prefix_marks,
    text_marks,
)
from phasewise.core.request import Endpoint
from phasewise.core.request_fields import FIELDS, FIELDS_ON, PROMPT_FIELD, fields_where
from phasewise.gateway.api.fields import SEVERAL_PROMPTS, Parsed

ROOT_FIELDS = {on: fields_where(lambda row: row.prefix == "root", on) for on in Endpoint}
OPENING_FIELDS = {on: fields_where(lambda row: row.prefix == "opening", on) for on in Endpoint}
"""Parts of the prompt before the messages, in about the order in which templates write them."""
REREAD_FIELDS = frozenset(fields_where(lambda row: row.prefix == "reread"))

# Looking up a member of an enum is slow.
_COMPLETIONS, _RESPONSES = Endpoint.COMPLETIONS, Endpoint.RESPONSES
_PROMPT_NAME = {endpoint: b'"%b"' % name.encode() for endpoint, name in PROMPT_FIELD.items()}


class PrefixHashing:
    """Hashes prompts with a key that no client knows, so that none can forge a collision.

    With `names_conversations`, other gateways have the key too and must find the same home of a conversation.
    """

    def __init__(self, key: bytes, *, names_conversations: bool = False) -> None:
        self._key = key
        self._names_conversations = names_conversations

    def hashes(self, endpoint: Endpoint, fields: dict[str, Any], salt: bytes | None) -> tuple[int, ...]:
        """The request's prefix hashes; none unless it has a single, long prompt that may use the cache."""
        if _is_read_again(fields):
            return ()
        if not endpoint.generates:
            return ()
        prompt = fields.get(PROMPT_FIELD[endpoint])
        text = _completion(prompt) if endpoint is _COMPLETIONS else _chat(endpoint, fields, prompt)
        return prefix_hashes(_root(endpoint, fields, salt), text, self._key)

    def conversation(self, endpoint: Endpoint, fields: dict[str, Any], hashes: tuple[int, ...]) -> int:
        """A number that all turns of a conversation have in common: of everything up to the first message of
        its user, in a prompt without messages of the first block. 0 if there is none.
        """
        if not self._names_conversations or not hashes:
            return 0
        messages = [] if endpoint is _COMPLETIONS else _listed(fields.get(PROMPT_FIELD[endpoint]))
        users = (
            number
            for number, message in enumerate(messages, 1)
            if not isinstance(message, dict) or message.get("role") == "user"
        )
        opening = messages[: next(users, 0)]
        if not opening:
            return hashes[0]
        text = _chat(endpoint, fields, opening)
        # The first block's hash has the model and the tenant in it.
        return int.from_bytes(blake2b(text, key=self._key, digest_size=8).digest()) ^ hashes[0]


def _is_read_again(fields: dict[str, Any]) -> bool:
    """Whether the engine computes the whole prompt again, because prompt logprobs are not cached.

    Most requests with `echo` ask for them; in chats it is the default.
    """
    return not REREAD_FIELDS.isdisjoint(fields) and any(
        bool(fields[name]) if FIELDS[name].type == "boolean" else fields[name] is not None
        for name in REREAD_FIELDS & fields.keys()
    )


def _root(endpoint: Endpoint, fields: dict[str, Any], salt: bytes | None) -> bytes:
    """What separates equal prompts. An adapter is requested by its name, so the model field covers both.

    An unknown field may change the prompt from its beginning on.
    """
    unknown = fields.keys() - FIELDS_ON[endpoint].keys()
    chosen = {
        name: fields[name] for name in (*ROOT_FIELDS[endpoint], *unknown) if fields.get(name) is not None
    }
    return _canonical([fields.get("model"), None if salt is None else salt.decode(), chosen])


def _chat(endpoint: Endpoint, fields: dict[str, Any], prompt: object) -> bytes:
    messages = _listed(prompt)
    if not messages:
        return b""
    pieces: list[bytes] = []
    left = HASHED_BYTES
    for piece in _chat_pieces(endpoint, fields, messages):
        pieces.append(piece)
        left -= len(piece)
        if left <= 0:
            break
    return b"".join(pieces)


def _chat_pieces(endpoint: Endpoint, fields: dict[str, Any], messages: list[Any]) -> Iterator[bytes]:
    for name in OPENING_FIELDS[endpoint]:
        if parts := _listed(fields.get(name)):
            yield _canonical(name)
            yield from (_canonical(part) for part in parts if not _is_billing_header(part))
    for message in messages:
        yield _canonical(_plain(message) if isinstance(message, dict) else message)


def _plain(message: dict[str, Any]) -> list[Any]:
    """A message without null fields, and without a list around its only text.

    The role comes first, as in every template: messages of different roles have no common prefix.
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
        # Token ids, each with at least a digit and a comma.
        return _canonical(prompt[: HASHED_BYTES // 2])
    return b""


def _listed(value: object) -> list[Any]:
    if isinstance(value, str):
        return [value[:HASHED_BYTES]]
    return value if isinstance(value, list) else []


def _is_billing_header(part: object) -> bool:
    """Whether it is a block of Claude Code that differs in each request, and that engines take out."""
    text = part.get("text") if isinstance(part, dict) else None
    return isinstance(text, str) and text.startswith("x-anthropic-billing-header")


def _canonical(value: object) -> bytes:
    """The same bytes for the same JSON, whatever the order of its keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


# --- The text of a prompt as far as marks look at it, without the JSON around it.
#
# Escapes and field names would make unlike prompts look alike.


def prompt_text(endpoint: Endpoint, fields: dict[str, Any]) -> bytes:
    """The beginning of a request's text, message by message; empty for token ids."""
    prompt = fields.get(PROMPT_FIELD.get(endpoint, ""))
    is_text = endpoint in SEVERAL_PROMPTS or (endpoint is _RESPONSES and isinstance(prompt, str))
    texts = _prompts(prompt) if is_text else _chat_texts(prompt)
    taken: list[str] = []
    left = TEXT_LIMIT_BYTES
    for text in texts:
        taken.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return "\n".join(taken).encode(errors="replace")


def _chat_texts(messages: object) -> Iterator[str]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from (
                part["text"]
                for part in content
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            )


def _prompts(prompt: object) -> Iterator[str]:
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        yield from (text for text in prompt if isinstance(text, str))


# --- Marks the prompts of requests, within a time budget.
#
# A mark costs a pass over the prompt, which is one of the largest costs of a request. Readers treat a request
# without marks as unknown, so under heavy load some requests have none.

SHARE_OF_TIME = 0.02
"""The largest share of time for marking prompts."""
SAVED_UP_S = 0.25
"""The burst after a quiet time: some hundred long prompts in a row."""

Marks = tuple[str, ...]


class TimeBudget:
    """A time budget for optional work: a share of all time, with a burst."""

    def __init__(self, share: float, saved_up_s: float) -> None:
        self._share = share
        self._most_s = self._left_s = saved_up_s
        self._seen_s = 0.0

    def allows(self, now_s: float) -> bool:
        """Whether there is any left."""
        self._left_s = min(self._most_s, self._left_s + (now_s - self._seen_s) * self._share)
        self._seen_s = now_s
        return self._left_s > 0

    def spend(self, seconds: float) -> None:
        """Subtract the time spent; the budget may become negative."""
        self._left_s -= seconds


def prompt_bytes(endpoint: Endpoint, body: bytes) -> bytes:
    """The part of the body that is marked, from the start of its prompt."""
    start = max(body.find(_PROMPT_NAME[endpoint]), 0)
    return body[start : start + MARK_SIZES_BYTES[-1]]


class Marking:
    """Marks prompts under a key that is never written down."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = key
        self._clock = clock
        self._budget = TimeBudget(SHARE_OF_TIME, SAVED_UP_S)

    def marks(self, endpoint: Endpoint, body: bytes, parsed: Parsed, now_s: float) -> tuple[Marks, Marks]:
        """Marks of the prompt's prefix and of its text; none without budget."""
        if endpoint not in PROMPT_FIELD or len(body) < MARK_SIZES_BYTES[0]:
            return (), ()
        if not self._budget.allows(now_s):
            return (), ()
        began_s = self._clock()
        prefix = prefix_marks(prompt_bytes(endpoint, body), self._key)
        text = prompt_text(endpoint, parsed.fields) if parsed.text is None else parsed.text
        marked = prefix, text_marks(text, self._key)
        self._budget.spend(self._clock() - began_s)
        return marked
