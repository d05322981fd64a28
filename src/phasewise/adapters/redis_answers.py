"""Keeps answers in Redis, for all gateways together.

One Redis, or one whose search asks all its shards: in a plain cluster each knows but its own part.
Deadlines, and what to do while Redis does not answer, are the gateway's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, replace
from importlib import resources

import orjson

from phasewise.adapters.redis_answer_index import SETTING, RedisAnswerIndex, as_tag, drop_indexes
from phasewise.adapters.redis_answer_text import read_answer, read_lesson
from phasewise.adapters.redis_connection import redis_connections
from phasewise.adapters.redis_line import RedisLine, refusal
from phasewise.model.caching import Lesson, Neighbour, Purge, StoredAnswer, Vector

LESSONS_KEPT = 200_000
"""Of all tenants together. A gateway that starts after more has lost the beginning of every proof, and starts
those anew, so there is room for many."""
_NAMED_SCRIPT = resources.files(__package__).joinpath("redis_answers_named.lua").read_text(encoding="utf-8")
_KEYS_PER_PAGE = 500
_TAKEN_OUT_AT_ONCE = 8
_LESSONS_PER_PAGE = 250
_BYTES_PER_NUMBER = 4


class RedisAnswers:
    """The store. Nothing is contacted before `start`, and the URL is never shown.

    An answer is a hash of its own, with all that is given again as JSON in the field `answer`.
    """

    def __init__(self, url: str, key_prefix: str, now: Callable[[], float] = time.time) -> None:
        self._line = RedisLine(redis_connections(url, SETTING))
        self._prefix = key_prefix
        self._now = now
        self._space = ""
        self._index: RedisAnswerIndex | None = None
        self._vector_bytes = 0

    async def start(self, space: str, dimensions: int | None) -> None:
        """Make ready for vectors of this space; raises ConfigError for a Redis that can never serve.

        After StoreUnreachable it need not be called again: what is missing is made when it is missed.
        """
        self._space = space
        self._vector_bytes = (dimensions or 0) * _BYTES_PER_NUMBER
        if dimensions is None:
            self._index = None
            await self._line.ask("PING")
        else:
            name = f"{self._prefix}:index:{space}"
            self._index = RedisAnswerIndex(self._line, name, self._name(""), dimensions)
            await self._index.make()

    async def exact(self, key: str, scope: str) -> StoredAnswer | None:
        """The answer to this very request, its vector left out."""
        (kept,) = await self._line.ask("HMGET", self._name(key), "answer")
        answer = self._given(kept, scope)
        return answer if answer is not None and answer.key == key else None

    async def nearest(self, scope: str, vector: Vector, count: int) -> list[Neighbour]:
        """The nearest of the scope's answers that have a vector, nearest first, their vectors left out."""
        if self._index is None or len(vector) != self._vector_bytes:
            return []
        neighbours = []
        for similarity, kept in await self._index.nearest(scope, vector, count):
            # The index has chosen by scope, and what it chose says its scope itself: the wall stands twice.
            answer = self._given(kept, scope)
            if answer is not None:
                neighbours.append(Neighbour(answer, min(similarity, 1.0)))
        return neighbours

    async def put(self, answer: StoredAnswer) -> None:
        """Keep an answer until it expires, in place of one with the same key."""
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
        # All or nothing: an answer whose expiry got lost would be given for ever.
        keep = [
            ("MULTI",),
            ("DEL", name),
            ("HSET", name, *(part for item in fields.items() for part in item)),
            ("PEXPIREAT", name, int(answer.expires_unix_s * 1000)),
            ("EXEC",),
        ]
        *_, done = await self._line.ask_all(keep)
        for reply in done if isinstance(done, list) else [done]:
            if isinstance(reply, Exception):
                raise refusal(reply)

    async def purge(self, what: Purge) -> int:
        """Forget answers, of all spaces; returns how many.

        Taking one out of an index costs Redis about a millisecond, so it is asked for few at a time, with
        others in between. If all go, the indexes go first: another space's is made again when it is missed.
        """
        forgotten, per_trip = 0, _TAKEN_OUT_AT_ONCE
        if what == Purge():
            await drop_indexes(self._line, f"{self._prefix}:index:")
            per_trip = _KEYS_PER_PAGE
        async for names in self._named(what):
            for first in range(0, len(names), per_trip):
                forgotten += int(await self._line.ask("UNLINK", *names[first : first + per_trip]))
        if self._index is not None:
            await self._index.make_again()
        return forgotten

    async def size(self) -> int:
        """How many answers of this space are kept; without an index they are counted one by one."""
        if self._index is not None:
            return await self._index.size()
        counted, cursor = 0, b"0"
        while True:
            cursor, names = await self._line.ask(
                "SCAN", cursor, "MATCH", self._name("*"), "COUNT", _KEYS_PER_PAGE
            )
            counted += len(names)
            if cursor == b"0":
                return counted

    async def teach(self, lesson: Lesson) -> None:
        """Keep a lesson for all who share this Redis; the oldest of very many are forgotten."""
        await self._line.ask(
            "XADD", self._lessons, "MAXLEN", "~", LESSONS_KEPT, "*", "lesson", orjson.dumps(asdict(lesson))
        )

    async def lessons(self, after: str) -> tuple[str, Sequence[Lesson]]:
        """The next lessons after a place (`""`: the oldest kept), oldest first, and the new place."""
        start = f"({after}" if after else "-"
        page = await self._line.ask("XRANGE", self._lessons, start, "+", "COUNT", _LESSONS_PER_PAGE)
        lessons = [lesson for _, fields in page if (lesson := read_lesson(fields[1])) is not None]
        return page[-1][0].decode() if page else after, lessons

    async def close(self) -> None:
        """Let the connection go."""
        await self._line.close()

    @property
    def _lessons(self) -> str:
        return f"{self._prefix}:lessons:{self._space}"

    def _name(self, key: str) -> str:
        return f"{self._prefix}:answer:{self._space}:{key}"

    async def _named(self, what: Purge) -> AsyncIterator[list[bytes]]:
        """The names of the answers that are all of this, page by page."""
        named = (what.tenant, what.namespace, None if what.tag is None else as_tag(what.tag))
        conditions = [part for name in named for part in ("0" if name is None else "1", name or "")]
        cursor = b"0"
        while True:
            cursor, names = await self._line.ask(
                "EVAL", _NAMED_SCRIPT, 0, cursor, f"{self._prefix}:answer:*", _KEYS_PER_PAGE, *conditions
            )
            yield names
            if cursor == b"0":
                return

    def _given(self, kept: bytes | None, scope: str) -> StoredAnswer | None:
        """The answer, if it is one, is of this scope and has not expired by this gateway's clock."""
        if kept is None:
            return None
        answer = read_answer(kept)
        if answer is None or answer.scope != scope or answer.expires_unix_s <= self._now():
            return None
        return answer
