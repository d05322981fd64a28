"""What admins may ask of the answer cache: its report, to forget answers, what it makes of a question.

Who may ask is checked in routes.py; the answers themselves are the cache's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Annotated, Any, Protocol, TypeVar

import orjson
from pydantic import Field, ValidationError

from phasewise.caching.identity import DEFAULT_NAMESPACE
from phasewise.config.base import Frozen, Name
from phasewise.errors import EmbedderUnreachable, RefusalKind, RequestRefused, StoreUnreachable
from phasewise.gateway.fields import MODEL_NAME_LIMIT, parse_body
from phasewise.model.caching import Purge
from phasewise.model.request import Endpoint

BODY_LIMIT_BYTES = 2**20
DEFAULT_TENANT = "default"
"""Of keys that name none, and of requests without keys."""
DEADLINE_S = 30.0
"""Nobody's stream waits for these, but an admin should not wait for a Redis that hangs."""

_Answer = TypeVar("_Answer")


class CacheDesk(Protocol):
    """The cache as its admins see it."""

    def report(self) -> dict[str, Any]:
        """What it did or would have done, for JSON."""

    async def purge(self, what: Purge) -> int:
        """Forget answers; returns how many."""

    async def explain(
        self, fields: Mapping[str, Any], tenant: str, namespace: str, show_text: bool
    ) -> dict[str, Any]:
        """What would become of such a chat request, and why; nothing is kept or learned of it."""


class PurgeOrder(Frozen):
    """Which answers to forget: those that all of what is named holds for."""

    tenant: Name | None = None
    namespace: Name | None = None
    tag: Name | None = None
    all: bool = False


class Question(Frozen):
    """A question to explain, and the rest of the request it stands in.

    `fields` are the request's further ones, such as max_tokens: they are part of who may share an answer.
    """

    model: Annotated[str, Field(min_length=1, max_length=MODEL_NAME_LIMIT)]
    text: Annotated[str, Field(min_length=1)]
    system: str | None = None
    fields: dict[str, Any] = Field(default_factory=dict)
    tenant: Name = DEFAULT_TENANT
    namespace: Name = DEFAULT_NAMESPACE
    show_text: bool = False


_Order = TypeVar("_Order", PurgeOrder, Question)


def existing(desk: CacheDesk | None) -> CacheDesk:
    """The gateway's cache, or the refusal that tells how to have one."""
    if desk is None:
        raise RequestRefused(
            RefusalKind.NOT_FOUND,
            "this gateway has no answer cache",
            hint="set gateway.cache in its file; mode shadow serves nothing and reports what it would have",
        )
    return desk


async def purge(desk: CacheDesk, body: bytes) -> dict[str, Any]:
    """Forget what the body names."""
    order = _read(PurgeOrder, body)
    named = (order.tenant, order.namespace, order.tag)
    if order.all == any(it is not None for it in named):
        raise RequestRefused(
            RefusalKind.BAD_REQUEST,
            "name what to forget, or all, but not both",
            hint='such as {"tenant": "a"}, {"namespace": "b", "tag": "c"} or {"all": true}',
        )
    return {"purged": await _in_time(desk.purge(Purge(*named)))}


async def explain(desk: CacheDesk, body: bytes) -> dict[str, Any]:
    """What would become of the question that the body holds."""
    question = _read(Question, body)
    fields = parse_body(Endpoint.CHAT, _chat_body(question)).fields
    return await _in_time(desk.explain(fields, question.tenant, question.namespace, question.show_text))


def _chat_body(question: Question) -> bytes:
    set_here = {"model", "messages"} & question.fields.keys()
    if set_here:
        raise RequestRefused(
            RefusalKind.BAD_REQUEST,
            f"fields may not hold {', '.join(sorted(set_here))}",
            param="fields",
            hint="model, system and text stand beside it",
        )
    messages = [{"role": "user", "content": question.text}]
    if question.system is not None:
        messages.insert(0, {"role": "system", "content": question.system})
    try:
        return orjson.dumps({**question.fields, "model": question.model, "messages": messages})
    except orjson.JSONEncodeError:
        # What was read can be written, but for what is nested deeper than it may be anyway.
        raise RequestRefused(RefusalKind.BAD_REQUEST, "fields are nested too deep", param="fields") from None


def _read(kind: type[_Order], body: bytes) -> _Order:
    try:
        return kind.model_validate(orjson.loads(body), strict=True)
    except orjson.JSONDecodeError:
        raise RequestRefused(RefusalKind.BAD_REQUEST, "the body is not JSON") from None
    except ValidationError as error:
        # Of all that the error knows, only the place and the rule: the rest may be a question.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"][:1])) or None
        raise RequestRefused(
            RefusalKind.BAD_REQUEST,
            f"{place or 'the body'}: {first['msg']}",
            param=place,
            hint=f"taken here: {', '.join(kind.model_fields)}",
        ) from None


async def _in_time(answer: Awaitable[_Answer]) -> _Answer:
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await answer
    except TimeoutError as error:
        raise RequestRefused(
            RefusalKind.CACHE_UNAVAILABLE,
            f"the cache took longer than {DEADLINE_S:.0f} s",
            hint="ask again: a purge goes on where it was",
        ) from error
    except (StoreUnreachable, EmbedderUnreachable) as error:
        what = "embedder" if isinstance(error, EmbedderUnreachable) else "store"
        raise RequestRefused(
            RefusalKind.CACHE_UNAVAILABLE,
            f"the cache's {what} does not answer; requests are served without it meanwhile",
            hint="see the gateway's log, and `degraded` in /phasewise/v1/cache",
        ) from error
