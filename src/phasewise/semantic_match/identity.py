"""Which requests may share an answer: a fingerprint of everything but the wording of the last user turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import orjson

from phasewise.core.caching import Bypass
from phasewise.core.request import Endpoint
from phasewise.core.request_fields import FIELDS, fields_where
from phasewise.core.value import value
from phasewise.semantic_match.reading import read

DELIVERY_FIELDS = frozenset(fields_where(lambda it: it.is_delivery))
"""Fields that change how an answer is sent, not what it says."""
DEFAULT_NAMESPACE = "default"
_EXACT = 2.0**53
"""Below it, whole numbers are exact both as a float and as an int."""


@value
class Identity:
    """A request as the cache identifies it.

    Requests with the same `key` are identical; those with the same `scope` differ only in the words of
    `question`. Everything else in a request is part of both, including its tenant and namespace.
    """

    key: str
    scope: str
    tenant: str
    namespace: str
    model: str
    question: str
    tags: tuple[str, ...] = ()

    @property
    def domain(self) -> str:
        """Where lessons apply: one tenant, namespace and model."""
        return f"{self.tenant}/{self.namespace}/{self.model}"


def identify(
    endpoint: Endpoint,
    fields: Mapping[str, Any],
    tenant: str,
    namespace: str = DEFAULT_NAMESPACE,
    tags: tuple[str, ...] = (),
    space: str = "",
) -> Identity | None:
    """The identity of a request; None if it has no last user turn in plain text.

    `space` is the embedder's: another space makes another request.
    """
    turn = _last_user_turn(endpoint, fields)
    if turn is None:
        return None
    texts, rest = turn
    # A list, so that no tenant and namespace can be spelled to look like two others.
    scope = _digest([space, endpoint.value, tenant, namespace, len(texts), _sorted(rest)])
    return Identity(
        key=_digest([scope, texts]),
        scope=scope,
        tenant=tenant,
        namespace=namespace,
        model=str(fields["model"]),
        question="\n".join(texts),
        tags=tags,
    )


def plain_texts(content: object) -> list[str] | None:
    """The texts of a message's content: one for a string, one for each part; None if not all is text."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list) or not content:
        return None
    texts = [part["text"] for part in content if _is_plain_text(part)]
    return texts if len(texts) == len(content) else None


def _is_plain_text(part: object) -> bool:
    """A part with any other field may be something else to an engine, whatever its type says."""
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _last_user_turn(endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]] | None:
    """The texts of the last turn, and everything else in the request."""
    # To an engine a null field is the same as none; some clients send all of them.
    rest = {
        name: _number(value)
        for name, value in fields.items()
        if value is not None and name not in DELIVERY_FIELDS
    }
    if endpoint is Endpoint.COMPLETIONS:
        prompt = rest.pop("prompt", None)
        return ([prompt], rest) if isinstance(prompt, str) else None
    messages = rest.pop("messages", None)
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        return None
    last = dict(messages[-1])
    texts = plain_texts(last.pop("content", None))
    if last.get("role") != "user" or texts is None:
        return None
    return texts, {**rest, "messages": [*map(_sorted, messages[:-1]), _sorted(last)]}


def _number(value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
    """A field's number however it is spelled: 0 and 0.0 are the same temperature.

    Numbers in nested values stay as they were written, because a template may print them.
    """
    return int(value) if type(value) is float and value.is_integer() and abs(value) < _EXACT else value


def _sorted(value: Any) -> Any:  # noqa: ANN401 - a request, or what it has for a message
    """The same with its keys sorted, because their order means nothing in a request or a message.

    In nested values order matters: an engine fills in a schema's properties in order, and reasons before a
    result give another answer.
    """
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def _digest(parts: list[Any]) -> str:
    return blake2b(orjson.dumps(parts), digest_size=32).hexdigest()


# --- Which requests bypass the cache, because their answers must not be reused or cannot be judged.

LONGEST_QUESTION = 32_768
"""In characters: a longer one takes more space than its answer is likely to save."""
LONGEST_SEMANTIC = 1_000
"""In characters. Small embedders read 256 tokens: texts that differ only after those seem equal."""
MOST_WORDS_SEMANTIC = 60
"""Guards are made for sentences, not essays, and block the gateway's event loop while they run."""
FOLLOW_UP_WORDS = 3
"""A turn of so few words in a conversation refers to what was said before: "yes", "the second one"."""

_ASKS: dict[Bypass, Callable[[Any], bool]] = {
    Bypass.NOT_CHAT: bool,
    Bypass.TOOLS: bool,
    Bypass.SEED: lambda seed: seed is not None,
    Bypass.SEVERAL_ANSWERS: lambda count: count not in (None, 1),
    # 0 asks for the chosen token's, so it is not the same as False.
    Bypass.LOGPROBS: lambda wanted: wanted is not None and wanted is not False,
}
"""Whether the value of a field asks for what keeps a request out of the cache. The first reason is given."""
_ASKING_FIELDS = {name: why for name, row in FIELDS.items() if (why := row.bypass) in _ASKS}
"""Most requests have none of them, and need not be asked for each."""
_KNOWN = {on: frozenset(fields_where(lambda it: it.is_passed_on, on)) for on in Endpoint}
_NUMBERS = (int, float)
_TOO_LARGE = 2**63
_TOOL_ROLES = ("tool", "function")
_TOOL_CALLS = ("tool_calls", "function_call")
_WORD = re.compile(r"\w+")


def why_bypassed(endpoint: Endpoint, fields: Mapping[str, Any], max_temperature: float) -> Bypass | None:
    """Why this request is neither answered from the cache nor stored in it; None if it may be.

    A request without a temperature does not ask for variety.
    """
    if not endpoint.is_completion:
        return Bypass.NOT_CHAT
    if not fields.keys() <= _KNOWN[endpoint] or not fields.get("model"):
        return Bypass.UNKNOWN_FIELD
    if not _ASKING_FIELDS.keys().isdisjoint(fields) and (why := _asks_for_more(fields)) is not None:
        return why
    temperature = fields.get("temperature")
    if temperature is not None and not (
        type(temperature) in _NUMBERS and 0 <= temperature <= max_temperature
    ):
        return Bypass.TEMPERATURE
    why = _unfit_prompt(fields) if endpoint is Endpoint.COMPLETIONS else _unfit_conversation(fields)
    return why or (Bypass.LARGE_NUMBER if _holds_large_number(fields) else None)


def may_match_semantically(endpoint: Endpoint, question: str) -> bool:
    """Whether other words could ask the same: a raw prompt has no turns, a long text is not a question."""
    return (
        endpoint is Endpoint.CHAT
        and len(question) <= LONGEST_SEMANTIC
        and len(read(question).words) <= MOST_WORDS_SEMANTIC
    )


def _asks_for_more(fields: Mapping[str, Any]) -> Bypass | None:
    """Why a request is no plain question, by the fields that few have."""
    found = {why for name, why in _ASKING_FIELDS.items() if name in fields and _ASKS[why](fields[name])}
    return next((why for why in _ASKS if why in found), None)


def _unfit_prompt(fields: Mapping[str, Any]) -> Bypass | None:
    prompt = fields.get("prompt")
    return _unfit_text(prompt if isinstance(prompt, str) else None)


def _unfit_text(text: str | None) -> Bypass | None:
    if text is None or not text.strip():
        return Bypass.NO_USER_TURN
    return Bypass.TOO_LONG if len(text) > LONGEST_QUESTION else None


def _unfit_conversation(fields: Mapping[str, Any]) -> Bypass | None:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return Bypass.NO_USER_TURN
    for message in messages:
        if why := _unfit_message(message):
            return why
    last = messages[-1]
    question = "\n".join(plain_texts(last.get("content")) or ()) if last.get("role") == "user" else ""
    if why := _unfit_text(question):
        return why
    spoken = any(message.get("role") == "assistant" for message in messages)
    if spoken and len(_WORD.findall(question)) <= FOLLOW_UP_WORDS:
        return Bypass.SHORT_FOLLOW_UP
    return None


def _unfit_message(message: object) -> Bypass | None:
    if not isinstance(message, dict):
        return Bypass.NO_USER_TURN
    if message.get("role") in _TOOL_ROLES or any(message.get(name) for name in _TOOL_CALLS):
        return Bypass.TOOLS
    content = message.get("content")
    return Bypass.MEDIA if isinstance(content, list) and content and plain_texts(content) is None else None


def _holds_large_number(fields: Mapping[str, Any]) -> bool:
    """Whether the body holds a number that was rounded when parsed here, but not by the engine."""
    left: list[Any] = list(fields.values())
    while left:
        value = left.pop()
        kind = type(value)
        if kind is dict:
            left.extend(value.values())
        elif kind is list:
            left.extend(value)
        elif (kind is int or kind is float) and abs(value) >= _TOO_LARGE:
            return True
    return False
