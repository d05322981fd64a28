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
    question, rest = turn
    scope = _digest([space, endpoint.value, tenant, namespace, rest])
    return Identity(
        key=_digest([scope, question]),
        scope=scope,
        tenant=tenant,
        namespace=namespace,
        model=str(fields["model"]),
        question=question,
        tags=tags,
    )


def _last_user_turn(endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The words of the last turn, and all else that the request says."""
    rest = {name: value for name, value in fields.items() if name not in DELIVERY_FIELDS}
    if endpoint is Endpoint.COMPLETIONS:
        prompt = rest.pop("prompt", None)
        return (prompt, rest) if isinstance(prompt, str) else None
    messages = rest.pop("messages", None)
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        return None
    last = dict(messages[-1])
    question = last.pop("content", None)
    if last.get("role") != "user" or not isinstance(question, str):
        return None
    return question, {**rest, "messages": [*messages[:-1], last]}


def _digest(parts: list[Any]) -> str:
    canonical = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    return blake2b(canonical, digest_size=32).hexdigest()
