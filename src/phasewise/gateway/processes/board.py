"""The memory that the processes of one gateway share: work on engines, what keys have used, who waits.

It is a file that all of them map. Each process has a column and writes nothing but that, so no count is lost
and none needs a lock. The row of a key is changed under a lock on its bytes, which the kernel releases if the
process dies. The supervisor clears the column of a process that has ended.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain
from operator import add
from tempfile import TemporaryFile

from phasewise.core.value import value

COLUMNS = 32
"""Processes that can share it; those that take over and those that drain have one each."""
WORKER_ROWS = 2_048
KEY_ROWS = 16_384
LOAD_FIELDS = 5
_PID, _TURN, _FACTS = 0, 1, 8
_USED_ROWS, _USED_COLUMNS, _CHANGES, _GENERATION, _SECRET, _HEADER = 0, 1, 2, 3, 4, 8
SECRET_BYTES = 32


@value
class _Layout:
    """Where the parts begin, in numbers of eight bytes."""

    columns: int = _HEADER
    worker_ids: int = columns + COLUMNS * _FACTS
    loads: int = worker_ids + WORKER_ROWS
    key_ids: int = loads + COLUMNS * WORKER_ROWS * LOAD_FIELDS
    buckets: int = key_ids + KEY_ROWS
    slots: int = buckets + 2 * KEY_ROWS
    size: int = slots + KEY_ROWS * COLUMNS


_AT = _Layout()


def _facts(column: int) -> int:
    return _AT.columns + column * _FACTS


def _loads(column: int) -> int:
    return _AT.loads + column * WORKER_ROWS * LOAD_FIELDS


def create_board() -> int:
    """The descriptor of an empty board, which exists as long as a process has it open."""
    if sys.platform == "linux":
        fd = os.memfd_create("phasewise-board")
    else:
        with TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _AT.size * 8)
    os.pwrite(fd, os.urandom(SECRET_BYTES), _SECRET * 8)
    os.set_inheritable(fd, True)
    return fd


class Board:
    """The board as one process sees it; without a `column` it can be read and cleared."""

    def __init__(self, fd: int, column: int | None = None) -> None:
        self._fd = fd
        self._map = mmap.mmap(self._fd, _AT.size * 8)
        self._words = memoryview(self._map).cast("q")
        self.column = column
        self._others: list[int] = []
        self._seen_changes = -1
        self._worker_rows: dict[str, int | None] = {}
        self._key_rows: dict[str, int | None] = {}
        if column is not None:
            self._own_facts, self._own_loads = _facts(column), _loads(column)
            self.reserve(column, os.getpid())

    @property
    def secret(self) -> bytes:
        """Random bytes that all processes of the gateway know, and those that take over from it."""
        return self._map[_SECRET * 8 : _SECRET * 8 + SECRET_BYTES]

    @property
    def generation(self) -> int:
        """Counts the gateways that have served with this memory: the last one has this number."""
        return self._words[_GENERATION]

    def begin_generation(self) -> int:
        """The gateway of this process serves from now on, and no other."""
        self._words[_GENERATION] += 1
        return self._words[_GENERATION]

    # --- columns ----------------------------------------------------------------------------------------

    def free_column(self) -> int | None:
        """A column that no process has."""
        return next((it for it in range(COLUMNS) if not self._words[_facts(it) + _PID]), None)

    @property
    def columns(self) -> list[int]:
        """The columns of all processes."""
        return [it for it in range(self._words[_USED_COLUMNS]) if self._words[_facts(it) + _PID]]

    @property
    def others(self) -> list[int]:
        """The columns of the other processes. Every request asks, and they change rarely."""
        changes = self._words[_CHANGES]
        if changes != self._seen_changes:
            self._others = [it for it in self.columns if it != self.column]
            self._seen_changes = changes
        return self._others

    def reserve(self, column: int, pid: int) -> None:
        """The column is this process's."""
        self._words[_facts(column) + _PID] = pid
        self._words[_USED_COLUMNS] = max(self._words[_USED_COLUMNS], column + 1)
        self._words[_CHANGES] += 1

    def clear(self, column: int) -> None:
        """The process of this column has ended, and so have its requests."""
        words = self._words
        for place in range(_loads(column), _loads(column) + words[_USED_ROWS] * LOAD_FIELDS):
            words[place] = 0
        for place in range(_AT.slots + column, _AT.size, COLUMNS):
            words[place] = 0
        for place in range(_facts(column), _facts(column) + _FACTS):
            words[place] = 0
        words[_CHANGES] += 1

    # --- work on engines --------------------------------------------------------------------------------

    def worker_row(self, name: str) -> int | None:
        """The row of a worker; None if there are too many of them."""
        try:
            return self._worker_rows[name]
        except KeyError:
            row = self._worker_rows[name] = self._find(name, _AT.worker_ids, WORKER_ROWS, in_order=True)
            return row

    def add_load(self, worker: str, change: Sequence[int]) -> None:
        """Work of this process on a worker has changed by so much."""
        row = self._worker_rows[worker] if worker in self._worker_rows else self.worker_row(worker)
        if row is None:
            return
        words, at = self._words, self._own_loads + row * LOAD_FIELDS
        requests, tokens, unread_tokens, streams, unread_requests = change
        # Three times in every request, so not in a loop; most fields do not change.
        if requests:
            words[at] += requests
        if tokens:
            words[at + 1] += tokens
        if unread_tokens:
            words[at + 2] += unread_tokens
        if streams:
            words[at + 3] += streams
        if unread_requests:
            words[at + 4] += unread_requests

    def others_loads(self) -> dict[str, list[int]]:
        """The work of all other processes, on the workers that this one knows and they use."""
        if not self.others:
            return {}
        words, found = self._words, dict[str, list[int]]()
        others = [_loads(it) for it in self.others]
        for name, row in self._worker_rows.items():
            if row is None:
                continue
            for at in others:
                place = at + row * LOAD_FIELDS
                if words[place]:
                    load = words[place : place + LOAD_FIELDS].tolist()
                    before = found.get(name)
                    found[name] = load if before is None else [*map(add, before, load)]
        return found

    # --- who waits --------------------------------------------------------------------------------------

    def set_turn(self, turn: Sequence[int]) -> None:
        """What this process says of the request that gets the next slot here; nothing if none waits."""
        at = self._own_facts + _TURN
        for place, number in enumerate((len(turn), *turn) if turn else (0,), at):
            self._words[place] = number

    @property
    def turns(self) -> dict[int, list[int]]:
        """What each process says of it, by its column; those without one are left out."""
        words, found = self._words, dict[int, list[int]]()
        for column in range(words[_USED_COLUMNS]):
            at = _facts(column) + _TURN
            if many := words[at]:
                found[column] = words[at + 1 : at + 1 + many].tolist()
        return found

    # --- what keys have used ----------------------------------------------------------------------------

    @contextmanager
    def key_row(self, key_id: str) -> Iterator[KeyRow | None]:
        """The row of a key, which no other process changes until the block is left; None if all are taken."""
        row = self._key_rows.get(key_id)
        if row is None:
            row = self._key_rows[key_id] = self._find(key_id, _AT.key_ids, KEY_ROWS)
        if row is None:
            yield None
            return
        with self._locked((_AT.key_ids + row) * 8):
            yield KeyRow(self._words, row, self.column or 0)

    # --- rows -------------------------------------------------------------------------------------------

    def _find(self, name: str, ids: int, rows: int, *, in_order: bool = False) -> int | None:
        """The row of this name, taken if it is new; None if all are taken."""
        wanted = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little", signed=True) or 1
        first = 0 if in_order else wanted % rows
        with self._locked(ids * 8 - 1):
            for row in chain(range(first, rows), range(first)):
                found = self._words[ids + row]
                if found == wanted:
                    return row
                if not found:
                    self._words[ids + row] = wanted
                    if in_order:
                        self._words[_USED_ROWS] = row + 1
                    return row
        return None

    @contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)


class KeyRow:
    """What a key has used, while its row is locked."""

    __slots__ = ("_buckets", "_column", "_slots", "_words")

    def __init__(self, words: memoryview, row: int, column: int) -> None:
        self._words = words
        self._buckets = _AT.buckets + 2 * row
        self._slots = _AT.slots + row * COLUMNS
        self._column = column

    @property
    def full_at_us(self) -> tuple[int, int]:
        """When its buckets of requests and of tokens are full again."""
        return self._words[self._buckets], self._words[self._buckets + 1]

    @full_at_us.setter
    def full_at_us(self, times_us: tuple[int, int]) -> None:
        self._words[self._buckets], self._words[self._buckets + 1] = times_us

    @property
    def slots(self) -> int:
        """Its requests under way, in all processes."""
        return sum(self._words[self._slots : self._slots + COLUMNS])

    def add_slot(self, count: int) -> None:
        """One more of them in this process, or one less."""
        self._words[self._slots + self._column] += count
