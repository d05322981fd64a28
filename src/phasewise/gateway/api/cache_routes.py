"""The admin routes of the answer cache: its report, purge and explain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from pydantic import Field, ValidationError

from phasewise.core.caching import Purge
from phasewise.core.errors import EmbedderUnreachable, RejectionKind, RequestRejected, StoreUnreachable
from phasewise.core.request import Endpoint
from phasewise.core.units import elapsed
from phasewise.fleet.config.gateway import Frozen, Name
from phasewise.gateway.api.fields import MODEL_NAME_LIMIT, parse_body
from phasewise.semantic_match.identity import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from phasewise.gateway.answer_cache.cache import AnswerCache

BODY_LIMIT_BYTES = 2**20
DEFAULT_TENANT = "default"
"""The tenant of keys that name none, and of requests without keys."""
DEADLINE_S = 30.0
"""Bounds an admin's wait for a Redis that hangs."""

_Answer = TypeVar("_Answer")


class PurgeOrder(Frozen):
    """Which answers to delete: those that match every given field."""

    tenant: Name | None = None
    namespace: Name | None = None
    tag: Name | None = None
    all: bool = False


class Question(Frozen):
    """A question to explain, and the rest of its request.

    `fields` are further request fields, such as max_tokens: only requests with the same ones share answers.
    """

    model: Annotated[str, Field(min_length=1, max_length=MODEL_NAME_LIMIT)]
    text: Annotated[str, Field(min_length=1)]
    system: str | None = None
    fields: dict[str, Any] = Field(default_factory=dict)
    tenant: Name = DEFAULT_TENANT
    namespace: Name = DEFAULT_NAMESPACE
    show_text: bool = False


_Order = TypeVar("_Order", PurgeOrder, Question)


def existing(cache: AnswerCache | None) -> AnswerCache:
    """The gateway's cache, or a rejection that says how to configure one."""
    if cache is None:
        raise RequestRejected(
            RejectionKind.NOT_FOUND,
            "this gateway has no answer cache",
            hint="set gateway.cache in its file; mode shadow only reports what it would serve",
        )
    return cache


async def purge(cache: AnswerCache, body: bytes) -> dict[str, Any]:
    """Delete the answers that the body names."""
    order = _read(PurgeOrder, body)
    named = (order.tenant, order.namespace, order.tag)
    if order.all == any(value is not None for value in named):
        raise RequestRejected(
            RejectionKind.BAD_REQUEST,
            "name what to delete, or all, but not both",
            hint='such as {"tenant": "a"}, {"namespace": "b", "tag": "c"} or {"all": true}',
        )
    return {"purged": await _in_time(cache.purge(Purge(*named)))}


async def explain(cache: AnswerCache, body: bytes) -> dict[str, Any]:
    """Explain what the cache would do with the question in the body."""
    question = _read(Question, body)
    fields = parse_body(Endpoint.CHAT, _chat_body(question)).fields
    return await _in_time(cache.explain(fields, question.tenant, question.namespace, question.show_text))


def _chat_body(question: Question) -> bytes:
    set_here = {"model", "messages"} & question.fields.keys()
    if set_here:
        raise RequestRejected(
            RejectionKind.BAD_REQUEST,
            f"fields may not hold {', '.join(sorted(set_here))}",
            param="fields",
            hint="set model, system and text beside fields",
        )
    messages = [{"role": "user", "content": question.text}]
    if question.system is not None:
        messages.insert(0, {"role": "system", "content": question.system})
    try:
        return orjson.dumps({**question.fields, "model": question.model, "messages": messages})
    except orjson.JSONEncodeError:
        # Parsed JSON can be written again, unless it is nested too deep.
        raise RequestRejected(
            RejectionKind.BAD_REQUEST, "fields are nested too deep", param="fields"
        ) from None


def _read(kind: type[_Order], body: bytes) -> _Order:
    try:
        return kind.model_validate(orjson.loads(body), strict=True)
    except orjson.JSONDecodeError:
        raise RequestRejected(RejectionKind.BAD_REQUEST, "the body is not JSON") from None
    except ValidationError as error:
        # Only the field and the rule: the rest of the error may contain the question.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"][:1])) or None
        raise RequestRejected(
            RejectionKind.BAD_REQUEST,
            f"{place or 'the body'}: {first['msg']}",
            param=place,
            hint=f"accepted: {', '.join(kind.model_fields)}",
        ) from None


async def _in_time(answer: Awaitable[_Answer]) -> _Answer:
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await answer
    except TimeoutError as error:
        raise RequestRejected(
            RejectionKind.CACHE_UNAVAILABLE,
            f"the cache took longer than {elapsed(DEADLINE_S)}",
            hint="retry: a purge continues where it stopped",
        ) from error
    except (StoreUnreachable, EmbedderUnreachable) as error:
        what = "embedder" if isinstance(error, EmbedderUnreachable) else "store"
        raise RequestRejected(
            RejectionKind.CACHE_UNAVAILABLE,
            f"the cache's {what} does not answer; requests are served without it until it does",
            hint="see the gateway's log, and `degraded` in /phasewise/v1/cache",
        ) from error
