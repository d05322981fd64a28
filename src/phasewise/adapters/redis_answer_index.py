"""The index of answers in a Redis with vector search: makes it, makes it again, and asks it what is near.

What an answer consists of, and whether one that was found may be given, is redis_answers.py's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from phasewise.adapters.redis_line import RedisLine, refusal
from phasewise.errors import ConfigError, StoreUnreachable
from phasewise.model.caching import Vector

SETTING = "gateway.cache.redis"
_NO_INDEX = re.compile(r"no such index|unknown index|index[ _]not[ _]found", re.IGNORECASE)


class RedisAnswerIndex:
    """An index by meaning of the hashes whose names begin so; their `scope` is the wall in it."""

    def __init__(self, line: RedisLine, name: str, names_begin: str, dimensions: int) -> None:
        self._line = line
        self._name = name
        self._names_begin = names_begin
        self._dimensions = dimensions

    async def make(self) -> None:
        """Make it if there is none; raises ConfigError for a Redis or an index that can never serve."""
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
                hint="end the url with /0; a key_prefix of their own keeps two gateways' answers apart",
            )
        else:
            raise refusal(reply)

    async def make_again(self) -> None:
        """Make it if there is none, of what is there; raises StoreUnreachable alone."""
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
        # Names and fields by turns; no fields if it has expired since it was found.
        near = [_pairs(fields) for fields in found[1::2] if fields]
        return [
            (1.0 - float(fields[b"distance"]), fields[b"answer"]) for fields in near if b"answer" in fields
        ]

    async def size(self) -> int:
        """How many answers it knows."""
        return int(_pairs(await self._answer("FT.INFO", self._name))[b"num_docs"])

    async def _answer(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 - whatever Redis says
        """What the index says. If there is none, because Redis has lost all it had, it is made, once."""
        reply = await self._reply(*command)
        if isinstance(reply, Exception) and _NO_INDEX.search(str(reply)):
            await self.make_again()
            reply = await self._reply(*command)
        if isinstance(reply, Exception):
            raise refusal(reply)
        return reply

    async def _reply(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 - whatever Redis says
        (reply,) = await self._line.ask_all([command])
        return reply

    async def _check_dimensions(self) -> None:
        info = _pairs(await self._line.ask("FT.INFO", self._name))
        for attribute in map(_pairs, info[b"attributes"]):
            dimensions = int(attribute.get(b"dim", self._dimensions))
            if dimensions != self._dimensions:
                raise ConfigError(
                    f"{SETTING} holds vectors of {dimensions} dimensions for this embedder, which now gives "
                    f"{self._dimensions}",
                    hint=f"set another {SETTING}.key_prefix, or forget them: FT.DROPINDEX {self._name} DD",
                )


async def drop_indexes(line: RedisLine, names_begin: str) -> None:
    """Drop all indexes whose names begin so; what they knew of stays."""
    (names,) = await line.ask_all([("FT._LIST",)])
    if isinstance(names, Exception):
        return  # a Redis without vector search
    # A refusal means that another gateway has dropped it meanwhile.
    begins = names_begin.encode()
    await line.ask_all([("FT.DROPINDEX", name) for name in names if name.startswith(begins)])


def as_tag(value: str) -> str:
    """A value as a tag: another for each, and no character of it means anything in a query or a list."""
    if value.isascii() and value.isalnum():
        return value
    return "".join(map(_as_tag, value.encode())) or "_empty"


def _as_tag(byte: int) -> str:
    char = chr(byte)
    return char if char.isascii() and char.isalnum() else f"_{byte:02x}"


def _pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=False))
