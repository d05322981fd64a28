"""Who may share an answer: a request's fingerprint, of everything in it but how the last user turn is worded.

Whether the request may be answered from a cache at all is bypass.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson

from phasewise.model.noun import noun
from phasewise.model.request import Endpoint

DELIVERY_FIELDS = frozenset({"stream", "stream_options"})
"""How an answer is sent, which changes nothing of what it says."""
DEFAULT_NAMESPACE = "default"
_EXACT = 2.0**53
"""Whole numbers below it are the same as a float and as an int."""


@noun
class Identity:
    """A request as the cache knows it.

    Requests with the same `key` are the same; those with the same `scope` differ at most in the words of
    `question`. Whatever else a request says is in both, and so are its tenant and namespace.
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
        """Whose matches teach each other: a tenant's, in one namespace, of one model."""
        return f"{self.tenant}/{self.namespace}/{self.model}"


def identify(
    endpoint: Endpoint,
    fields: Mapping[str, Any],
    tenant: str,
    namespace: str = DEFAULT_NAMESPACE,
    tags: tuple[str, ...] = (),
    space: str = "",
) -> Identity | None:
    """The identity of a request, None if it has no last user turn in plain text.

    `space` is the embedder's: with another, everything is another request.
    """
    turn = _last_user_turn(endpoint, fields)
    if turn is None:
        return None
    texts, rest = turn
    # As a list, so that no tenant and namespace can be spelled to look like two others.
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
    """The texts of a message's content: one if it is a string, one for each part; None if not all is text."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list) or not content:
        return None
    texts = [part["text"] for part in content if _is_plain_text(part)]
    return texts if len(texts) == len(content) else None


def _is_plain_text(part: object) -> bool:
    """A part with any other field is something else to some engine, whatever it says of its type."""
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _last_user_turn(endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]] | None:
    """The texts of the last turn, and all else that the request says."""
    # To an engine, null is what a field is that was left out; some clients send all of them.
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
    """A field's number however it is spelled: 0 and 0.0 ask for the same temperature.

    Numbers further inside stay as they were written: a template may print them.
    """
    return int(value) if type(value) is float and value.is_integer() and abs(value) < _EXACT else value


def _sorted(value: Any) -> Any:  # noqa: ANN401 - a request, or what it has for a message
    """The same in the order of its names, on which nothing depends in a request or a message.

    Further inside, order tells: an engine fills in a schema's properties as they stand, so that one which has
    the reasons first makes another answer.
    """
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def _digest(parts: list[Any]) -> str:
    return blake2b(orjson.dumps(parts), digest_size=32).hexdigest()
