"""Keeps answers in this process: for one gateway, until it ends."""

from __future__ import annotations

import asyncio
import heapq
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from phasewise.core.caching import Neighbour, Purge, StoredAnswer, Vector

# --- Vectors by key, compared with a query all at once and exactly.

ROWS_PER_VECTOR = 1.5
"""The most allocated rows per used row."""
_DTYPE = np.dtype("<f4")


class VectorRows:
    """The rows of one matrix, without gaps: the last row replaces a removed one.

    It knows the least recently used key.
    """

    def __init__(self, dimensions: int) -> None:
        self._matrix = np.empty((0, dimensions), _DTYPE)
        self._keys: list[str] = []
        self._rows: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def least_recently_used(self) -> str:
        """The key to evict first."""
        return next(iter(self._rows))

    def add(self, key: str, vector: Vector) -> None:
        """Add the vector of a new key."""
        self._resize(len(self._keys) + 1)
        self._matrix[len(self._keys)] = np.frombuffer(vector, _DTYPE)
        self._rows[key] = len(self._keys)
        self._keys.append(key)

    def remove(self, key: str) -> None:
        """Remove a key's vector."""
        row = self._rows.pop(key)
        last = self._keys.pop()
        if last != key:
            self._matrix[row] = self._matrix[len(self._keys)]
            self._rows[last] = row
            self._keys[row] = last
        self._resize(len(self._keys))

    def use(self, key: str) -> None:
        """Mark a key as used now."""
        self._rows.move_to_end(key)

    def nearest(self, vector: Vector, count: int) -> list[tuple[str, float]]:
        """The nearest keys and their cosines, nearest first."""
        similarities = self._matrix[: len(self._keys)] @ np.frombuffer(vector, _DTYPE)
        chosen = np.arange(len(similarities))
        if count < len(similarities):
            chosen = np.argpartition(similarities, -count)[-count:]
        ordered = chosen[np.argsort(-similarities[chosen], kind="stable")]
        return [(self._keys[row], float(similarities[row])) for row in ordered]

    def check_invariants(self) -> None:
        """Every key has its own row, no other rows are used, and little space is unused."""
        if {key: row for row, key in enumerate(self._keys)} != dict(self._rows):
            raise AssertionError(f"{len(self._keys)} keys and {len(self._rows)} rows do not match")
        if not len(self._keys) <= len(self._matrix) <= len(self._keys) * ROWS_PER_VECTOR:
            raise AssertionError(f"{len(self._matrix)} rows for {len(self._keys)} keys")

    def _resize(self, rows: int) -> None:
        """Allocate a quarter more than needed, when there are too few or too many rows, to copy rarely."""
        if not rows <= len(self._matrix) <= rows * ROWS_PER_VECTOR:
            matrix = np.empty((rows + rows // 4, self._matrix.shape[1]), _DTYPE)
            kept = min(len(self._keys), rows)
            matrix[:kept] = self._matrix[:kept]
            self._matrix = matrix


MOST_NUMBERS_PER_SCOPE = 50_000 * 384
"""The most in one scope's vectors: a look-up compares all of them and blocks the event loop."""
FORGOTTEN_IN_A_TURN = 1_000
"""Answers that a purge handles before it yields to other tasks."""
LESSONS_KEPT = 50_000
_BYTES_PER_NUMBER = 4
_BYTES_PER_ANSWER = 1000
"""What an answer without text takes, with its entries in the tables here."""
_BYTES_PER_SCOPE = 1000
"""What a scope's vectors take in addition to their numbers."""
_SPARE_EXPIRIES = 1000


@dataclass(slots=True)
class _Kept:
    answer: StoredAnswer
    size_bytes: int
    has_vector: bool


class _Tenant:
    """What one tenant has in the store: its bytes, and its keys from the least recently used on."""

    __slots__ = ("held_bytes", "keys")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.keys: OrderedDict[str, None] = OrderedDict()


class ProcessAnswers:
    """The store. To hold at most `keep_bytes` it evicts answers of the tenant that has most of them, the
    least recently used first: no tenant can push out the others.
    """

    def __init__(self, keep_bytes: int, now: Callable[[], float] = time.time) -> None:
        self._keep_bytes = keep_bytes
        self._now = now
        self._dimensions: int | None = None
        self._kept: dict[str, _Kept] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._kept_bytes = 0
        self._scopes: dict[str, VectorRows] = {}
        self._expiries: list[tuple[float, str]] = []
        self._lessons: deque[bytes] = deque(maxlen=LESSONS_KEPT)
        self._taught = 0

    async def start(self, space: str, dimensions: int | None) -> None:
        """Prepare for vectors of this many numbers; vectors of another length are dropped."""
        if dimensions != self._dimensions:
            for key in [key for key, kept in self._kept.items() if kept.has_vector]:
                self._forget(key)
        self._dimensions = dimensions

    async def exact(self, key: str, scope: str) -> StoredAnswer | None:
        """The answer to exactly this request, without its vector."""
        self._forget_expired()
        kept = self._kept.get(key)
        if kept is None or kept.answer.scope != scope:
            return None
        self._use(key)
        return kept.answer

    async def nearest(self, scope: str, vector: Vector, count: int) -> list[Neighbour]:
        """The scope's nearest answers that have a vector, nearest first, without their vectors."""
        self._forget_expired()
        rows = self._scopes.get(scope)
        if rows is None or not self._fits(vector):
            return []
        near = rows.nearest(vector, count)
        for key, _ in near:
            self._use(key)
        return [Neighbour(self._kept[key].answer, min(similarity, 1.0)) for key, similarity in near]

    async def put(self, answer: StoredAnswer) -> None:
        """Keep an answer until it expires; it replaces one with the same key."""
        self._forget(answer.key)
        self._forget_expired()
        vector = answer.vector if answer.vector is not None and self._fits(answer.vector) else None
        kept = _Kept(replace(answer, vector=None), _size_bytes(answer, vector), vector is not None)
        if kept.size_bytes > self._keep_bytes or answer.expires_unix_s <= self._now():
            return
        wanted_bytes = kept.size_bytes + (0 if vector is None else _BYTES_PER_SCOPE)
        while self._kept and self._held_bytes + wanted_bytes > self._keep_bytes:
            self._evict_for(answer.tenant, wanted_bytes)
        if vector is not None:
            self._add_vector(answer, vector)
        self._kept[answer.key] = kept
        self._kept_bytes += kept.size_bytes
        tenant = self._tenants.setdefault(answer.tenant, _Tenant())
        tenant.held_bytes += kept.size_bytes
        tenant.keys[answer.key] = None
        self._note_expiry(answer)

    async def purge(self, what: Purge) -> int:
        """Delete answers and return how many; yields to other tasks in between."""
        self._forget_expired()
        forgotten = 0
        for looked_at, key in enumerate(list(self._kept), start=1):
            kept = self._kept.get(key)
            if kept is not None and what.names(kept.answer):
                self._forget(key)
                forgotten += 1
            if looked_at % FORGOTTEN_IN_A_TURN == 0:
                await asyncio.sleep(0)
        return forgotten

    async def size(self) -> int:
        """How many answers are kept."""
        self._forget_expired()
        return len(self._kept)

    async def teach(self, lesson: bytes) -> None:
        """Keep a lesson; beyond a limit, the oldest are dropped."""
        self._lessons.append(lesson)
        self._taught += 1

    async def lessons(self, after: str) -> tuple[str, Sequence[bytes]]:
        """The next lessons after a cursor (`""`: the oldest kept), oldest first, and the new cursor."""
        forgotten = self._taught - len(self._lessons)
        first = max(0, int(after or 0) - forgotten)
        return str(self._taught), list(islice(self._lessons, first, None))

    async def close(self) -> None:
        """Nothing to release."""

    def check_invariants(self) -> None:
        """The store is within its limit, every answer expires, and every vector has an answer."""
        kept_bytes = sum(kept.size_bytes for kept in self._kept.values())
        if self._kept_bytes != kept_bytes or self._held_bytes > self._keep_bytes:
            raise AssertionError(f"{kept_bytes} bytes are kept, {self._kept_bytes} counted")
        of_tenants = sum(tenant.held_bytes for tenant in self._tenants.values())
        keys = {key for tenant in self._tenants.values() for key in tenant.keys}
        if of_tenants != kept_bytes or keys != self._kept.keys():
            raise AssertionError(f"{kept_bytes} bytes are kept, {of_tenants} counted by tenant")
        if not {(kept.answer.expires_unix_s, key) for key, kept in self._kept.items()} <= {*self._expiries}:
            raise AssertionError("an answer would never expire")
        with_vector = sum(kept.has_vector for kept in self._kept.values())
        if with_vector != sum(map(len, self._scopes.values())) or not all(self._scopes.values()):
            raise AssertionError(f"{with_vector} answers have vectors, but the scopes hold another number")
        for rows in self._scopes.values():
            rows.check_invariants()

    @property
    def _held_bytes(self) -> int:
        return self._kept_bytes + len(self._scopes) * _BYTES_PER_SCOPE

    def _fits(self, vector: Vector) -> bool:
        return self._dimensions is not None and len(vector) == self._dimensions * _BYTES_PER_NUMBER

    def _evict_for(self, name: str, wanted_bytes: int) -> None:
        """Evict one answer of the tenant that would have most; of two that have as much, of the new one's."""

        def held_bytes(other: str) -> tuple[int, bool]:
            more_bytes = wanted_bytes if other == name else 0
            return self._tenants[other].held_bytes + more_bytes, other == name

        largest = self._tenants[max(self._tenants, key=held_bytes)]
        self._forget(next(iter(largest.keys)))

    def _use(self, key: str) -> None:
        kept = self._kept[key]
        self._tenants[kept.answer.tenant].keys.move_to_end(key)
        if kept.has_vector:
            self._scopes[kept.answer.scope].use(key)

    def _add_vector(self, answer: StoredAnswer, vector: Vector) -> None:
        rows, numbers = self._scopes.get(answer.scope), len(vector) // _BYTES_PER_NUMBER
        if rows is None:
            rows = self._scopes[answer.scope] = VectorRows(numbers)
        elif (len(rows) + 1) * numbers > MOST_NUMBERS_PER_SCOPE:
            self._forget(rows.least_recently_used)
        rows.add(answer.key, vector)

    def _note_expiry(self, answer: StoredAnswer) -> None:
        heapq.heappush(self._expiries, (answer.expires_unix_s, answer.key))
        if len(self._expiries) > 2 * len(self._kept) + _SPARE_EXPIRIES:
            # Most entries are of answers that were dropped or replaced.
            self._expiries = [(kept.answer.expires_unix_s, key) for key, kept in self._kept.items()]
            heapq.heapify(self._expiries)

    def _forget_expired(self) -> None:
        now_s = self._now()
        while self._expiries and self._expiries[0][0] <= now_s:
            _, key = heapq.heappop(self._expiries)
            kept = self._kept.get(key)
            if kept is not None and kept.answer.expires_unix_s <= now_s:
                self._forget(key)

    def _forget(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        self._kept_bytes -= kept.size_bytes
        tenant = self._tenants[kept.answer.tenant]
        tenant.held_bytes -= kept.size_bytes
        del tenant.keys[key]
        if not tenant.keys:
            del self._tenants[kept.answer.tenant]
        if kept.has_vector:
            rows = self._scopes[kept.answer.scope]
            rows.remove(key)
            if not rows:
                del self._scopes[kept.answer.scope]


def _size_bytes(answer: StoredAnswer, vector: Vector | None) -> int:
    texts = (answer.tenant, answer.namespace, answer.model, answer.question, answer.text, *answer.tags)
    of_vector = int(len(vector or b"") * ROWS_PER_VECTOR)
    return _BYTES_PER_ANSWER + sum(map(_text_bytes, texts)) + sys.getsizeof(answer.tags) + of_vector


def _text_bytes(text: str) -> int:
    """What a text takes, with the UTF-8 copy that Python caches once the text was encoded."""
    return sys.getsizeof(text) + (0 if text.isascii() else len(text.encode()))
