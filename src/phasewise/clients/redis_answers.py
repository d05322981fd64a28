"""Keeps answers in Redis, shared by all gateways.

It needs a single Redis, or one whose search covers all shards: in a plain cluster, each shard searches only
its own part. The gateway sets deadlines and handles an unreachable Redis.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from importlib import resources
from typing import Any

import orjson

from phasewise.clients.redis_connection import SharedConnection, redis_connections, rejection
from phasewise.core.caching import Neighbour, Purge, StoredAnswer, Vector
from phasewise.core.errors import ConfigError, StoreUnreachable

# --- The index of answers in a Redis with vector search: creates it, recreates it and queries it.

SETTING = "gateway.cache.redis"
_NO_INDEX = re.compile(r"no such index|unknown index|index[ _]not[ _]found", re.IGNORECASE)


class RedisAnswerIndex:
    """A vector index of the hashes whose names have this prefix; `scope` separates tenants in it."""

    def __init__(self, redis: SharedConnection, name: str, names_begin: str, dimensions: int) -> None:
        self._redis = redis
        self._name = name
        self._names_begin = names_begin
        self._dimensions = dimensions

    async def make(self) -> None:
        """Create it if it is missing; raises ConfigError for a Redis or an index that can never serve."""
        reply = await self._reply(
            "FT.CREATE", self._name, "ON", "HASH", "PREFIX", 1, self._names_begin, "STOPWORDS", 0,
            "SCHEMA", "scope", "TAG", "CASESENSITIVE",
            "vector", "VECTOR", "HNSW", 12, "TYPE", "FLOAT32", "DIM", self._dimensions,
            "DISTANCE_METRIC", "COSINE", "M", 16, "EF_CONSTRUCTION", 200, "EF_RUNTIME", 64,
        )  # fmt: skip
        if not isinstance(reply, Exception):
            return
        said = str(reply).lower()
        if "already exists" in said:
            await self._check_dimensions()
        elif "unknown command" in said:
            raise ConfigError(
                f"gateway.cache.semantic is set, but the Redis of {SETTING} has no vector search",
                hint="use Redis 8, or load the search module, or leave gateway.cache.semantic out",
            )
        elif "db" in said:
            raise ConfigError(
                f"gateway.cache.semantic is set, but {SETTING}.url names a database that Redis cannot search",
                hint="end the url with /0; use a key_prefix to separate the answers of two gateways",
            )
        else:
            raise rejection(reply)

    async def make_again(self) -> None:
        """Create it from the stored answers if it is missing; raises only StoreUnreachable."""
        try:
            await self.make()
        except ConfigError as error:
            raise StoreUnreachable(error.message, hint=error.hint) from None

    async def nearest(self, scope: str, vector: Vector, count: int) -> list[tuple[float, bytes]]:
        """The similarity and the field `answer` of each of the scope's nearest, in one round trip."""
        query = f"(@scope:{{{as_tag(scope)}}})=>[KNN $count @vector $vector AS distance]"
        _, *found = await self._answer(
            "FT.SEARCH", self._name, query,
            "PARAMS", 4, "count", count, "vector", vector, "SORTBY", "distance",
            "RETURN", 2, "distance", "answer", "LIMIT", 0, count, "DIALECT", 2,
        )  # fmt: skip
        # Names and fields alternate; the fields are missing if the answer has expired since the search.
        near = [_pairs(fields) for fields in found[1::2] if fields]
        return [
            (1.0 - float(fields[b"distance"]), fields[b"answer"]) for fields in near if b"answer" in fields
        ]

    async def size(self) -> int:
        """How many answers it holds."""
        return int(_pairs(await self._answer("FT.INFO", self._name))[b"num_docs"])

    async def _answer(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 - whatever Redis says
        """The index's reply. If Redis has lost the index, it is recreated once."""
        reply = await self._reply(*command)
        if isinstance(reply, Exception) and _NO_INDEX.search(str(reply)):
            await self.make_again()
            reply = await self._reply(*command)
        if isinstance(reply, Exception):
            raise rejection(reply)
        return reply

    async def _reply(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 - whatever Redis says
        (reply,) = await self._redis.ask_all([command])
        return reply

    async def _check_dimensions(self) -> None:
        info = _pairs(await self._redis.ask("FT.INFO", self._name))
        for attribute in map(_pairs, info[b"attributes"]):
            dimensions = int(attribute.get(b"dim", self._dimensions))
            if dimensions != self._dimensions:
                raise ConfigError(
                    f"{SETTING} holds vectors of {dimensions} dimensions for this embedder, which now gives "
                    f"{self._dimensions}",
                    hint=f"set another {SETTING}.key_prefix, or forget them: FT.DROPINDEX {self._name} DD",
                )


async def drop_indexes(redis: SharedConnection, names_begin: str) -> None:
    """Drop all indexes whose names have this prefix; the stored answers stay."""
    (names,) = await redis.ask_all([("FT._LIST",)])
    if isinstance(names, Exception):
        return  # a Redis without vector search
    # A rejection means that another gateway has dropped it already.
    begins = names_begin.encode()
    await redis.ask_all([("FT.DROPINDEX", name) for name in names if name.startswith(begins)])


def as_tag(value: str) -> str:
    """A value as a tag: unique for each value, without characters that mean anything in a query or a list."""
    if value.isascii() and value.isalnum():
        return value
    return "".join(map(_as_tag, value.encode())) or "_empty"


def _as_tag(byte: int) -> str:
    char = chr(byte)
    return char if char.isascii() and char.isalnum() else f"_{byte:02x}"


def _pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=False))


# --- Reads answers from Redis: JSON that another version of phasewise may have written.
#
# An entry with missing or wrong types counts as absent.

_TYPES: Mapping[str, frozenset[type]] = {
    "str": frozenset({str}),
    "str | None": frozenset({str, type(None)}),
    "int | None": frozenset({int, type(None)}),
    "int | str | None": frozenset({int, str, type(None)}),
    "float": frozenset({int, float}),
    "float | None": frozenset({int, float, type(None)}),
    "tuple[str, ...]": frozenset({list}),
    "Vector | None": frozenset({type(None)}),
}
"""The JSON types of each annotation; exact types, because a bool would pass for a number."""
_OF_AN_ANSWER = {field.name: _TYPES[str(field.type)] for field in fields(StoredAnswer)}


def read_answer(text: bytes) -> StoredAnswer | None:
    """The answer, if it is valid."""
    try:
        reported = orjson.loads(text)
    except ValueError:
        return None
    if not isinstance(reported, dict) or reported.keys() != _OF_AN_ANSWER.keys():
        return None
    if any(type(reported[name]) not in accepted for name, accepted in _OF_AN_ANSWER.items()):
        return None
    if any(type(tag) is not str for tag in reported["tags"]):
        return None
    return StoredAnswer(**{**reported, "tags": tuple(reported["tags"])})


LESSONS_KEPT = 200_000
"""For all tenants together. A gateway that starts after more lessons lacks the beginning of every proof and
starts those again, so the limit is high."""
_NAMED_SCRIPT = resources.files(__package__).joinpath("redis_answers_named.lua").read_text(encoding="utf-8")
_KEYS_PER_PAGE = 500
_TAKEN_OUT_AT_ONCE = 8
_LESSONS_PER_PAGE = 250
_BYTES_PER_NUMBER = 4


class RedisAnswers:
    """The store. It contacts nothing before `start` and never shows the URL.

    An answer is a hash, with everything that is served as JSON in the field `answer`.
    """

    def __init__(self, url: str, key_prefix: str, now: Callable[[], float] = time.time) -> None:
        self._redis = SharedConnection(redis_connections(url, SETTING))
        self._prefix = key_prefix
        self._now = now
        self._space = ""
        self._index: RedisAnswerIndex | None = None
        self._vector_bytes = 0

    async def start(self, space: str, dimensions: int | None) -> None:
        """Prepare for vectors of this space; raises ConfigError for a Redis that can never serve.

        After StoreUnreachable it need not be called again: a missing index is created on first use.
        """
        self._space = space
        self._vector_bytes = (dimensions or 0) * _BYTES_PER_NUMBER
        if dimensions is None:
            self._index = None
            await self._redis.ask("PING")
        else:
            name = f"{self._prefix}:index:{space}"
            self._index = RedisAnswerIndex(self._redis, name, self._name(""), dimensions)
            await self._index.make()

    async def exact(self, key: str, scope: str) -> StoredAnswer | None:
        """The answer to exactly this request, without its vector."""
        (kept,) = await self._redis.ask("HMGET", self._name(key), "answer")
        answer = self._given(kept, scope)
        return answer if answer is not None and answer.key == key else None

    async def nearest(self, scope: str, vector: Vector, count: int) -> list[Neighbour]:
        """The scope's nearest answers that have a vector, nearest first, without their vectors."""
        if self._index is None or len(vector) != self._vector_bytes:
            return []
        neighbours = []
        for similarity, kept in await self._index.nearest(scope, vector, count):
            # The index has filtered by scope; the answer's own scope is checked again.
            answer = self._given(kept, scope)
            if answer is not None:
                neighbours.append(Neighbour(answer, min(similarity, 1.0)))
        return neighbours

    async def put(self, answer: StoredAnswer) -> None:
        """Keep an answer until it expires; it replaces one with the same key."""
        name = self._name(answer.key)
        fields: dict[str, str | bytes] = {
            "scope": as_tag(answer.scope),
            "tenant": answer.tenant,
            "namespace": answer.namespace,
            "tags": ",".join(map(as_tag, answer.tags)),
            "answer": orjson.dumps(asdict(replace(answer, vector=None))),
        }
        if answer.vector is not None and len(answer.vector) == self._vector_bytes:
            fields["vector"] = answer.vector
        # In one transaction: an answer without its expiry would be served for ever.
        keep = [
            ("MULTI",),
            ("DEL", name),
            ("HSET", name, *(part for item in fields.items() for part in item)),
            ("PEXPIREAT", name, int(answer.expires_unix_s * 1000)),
            ("EXEC",),
        ]
        *_, done = await self._redis.ask_all(keep)
        for reply in done if isinstance(done, list) else [done]:
            if isinstance(reply, Exception):
                raise rejection(reply)

    async def purge(self, what: Purge) -> int:
        """Delete answers of all spaces and return how many.

        Removing one from an index takes Redis about a millisecond, so they are deleted a few at a time, with
        other commands in between. To delete all, the indexes are dropped first: another space's index is
        recreated on its next use.
        """
        forgotten, per_trip = 0, _TAKEN_OUT_AT_ONCE
        if what == Purge():
            await drop_indexes(self._redis, f"{self._prefix}:index:")
            per_trip = _KEYS_PER_PAGE
        async for names in self._named(what):
            for first in range(0, len(names), per_trip):
                forgotten += int(await self._redis.ask("UNLINK", *names[first : first + per_trip]))
        if self._index is not None:
            await self._index.make_again()
        return forgotten

    async def size(self) -> int:
        """How many answers of this space are kept; without an index, this scans the keys."""
        if self._index is not None:
            return await self._index.size()
        counted, cursor = 0, b"0"
        while True:
            cursor, names = await self._redis.ask(
                "SCAN", cursor, "MATCH", self._name("*"), "COUNT", _KEYS_PER_PAGE
            )
            counted += len(names)
            if cursor == b"0":
                return counted

    async def teach(self, lesson: bytes) -> None:
        """Keep a lesson for all gateways of this Redis; beyond a limit, the oldest are dropped."""
        await self._redis.ask("XADD", self._lessons, "MAXLEN", "~", LESSONS_KEPT, "*", "lesson", lesson)

    async def lessons(self, after: str) -> tuple[str, Sequence[bytes]]:
        """The next lessons after a cursor (`""`: the oldest kept), oldest first, and the new cursor."""
        start = f"({after}" if after else "-"
        page = await self._redis.ask("XRANGE", self._lessons, start, "+", "COUNT", _LESSONS_PER_PAGE)
        return page[-1][0].decode() if page else after, [fields[1] for _, fields in page]

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.close()

    @property
    def _lessons(self) -> str:
        return f"{self._prefix}:lessons:{self._space}"

    def _name(self, key: str) -> str:
        return f"{self._prefix}:answer:{self._space}:{key}"

    async def _named(self, what: Purge) -> AsyncIterator[list[bytes]]:
        """The names of the answers that match all criteria, page by page."""
        named = (what.tenant, what.namespace, None if what.tag is None else as_tag(what.tag))
        conditions = [part for name in named for part in ("0" if name is None else "1", name or "")]
        cursor = b"0"
        while True:
            cursor, names = await self._redis.ask(
                "EVAL", _NAMED_SCRIPT, 0, cursor, f"{self._prefix}:answer:*", _KEYS_PER_PAGE, *conditions
            )
            yield names
            if cursor == b"0":
                return

    def _given(self, kept: bytes | None, scope: str) -> StoredAnswer | None:
        """The answer, if it is valid, of this scope and not expired by this gateway's clock."""
        if kept is None:
            return None
        answer = read_answer(kept)
        if answer is None or answer.scope != scope or answer.expires_unix_s <= self._now():
            return None
        return answer
